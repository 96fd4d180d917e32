// How threads share work: those of OpenMP, where a framework has loaded it, or ours, which sleep when there is none.
//
// To make a thread takes longer than to find the likeliest words of a vector, and so may waking one. Linux likes to wake a
// thread on the CPU of the one that wakes it, or on its last one, even if another is idle, and leaves two on one CPU for
// milliseconds, in which a call is over. So a helper that would wake where the caller is is sent away first, and the caller
// sleeps for none unless it has waited long.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>

#ifdef THREADS_OF_OPENMP
// What GCC makes of `#pragma omp parallel`. Called by its name, any compiler shares the threads of the OpenMP that the
// framework has loaded, where each would want its own.
extern "C" void GOMP_parallel(void (*work)(void *), void *own, unsigned threads, unsigned flags);
#else
#include <deque>
#include <linux/futex.h>
#include <new>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

// A number that threads sleep for.
class Awaited {
  public:
    std::atomic<uint32_t> number{0};

    // Returns once the number is another than `seen`, or for no reason.
    void sleep(uint32_t seen) {
        ++sleeping_;
        syscall(SYS_futex, &number, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
        --sleeping_;
    }

    // To be called when the number has changed.
    void wake(int most) {
        if (sleeping_) syscall(SYS_futex, &number, FUTEX_WAKE_PRIVATE, most, nullptr, nullptr, 0);
    }

  private:
    std::atomic<int> sleeping_{0};
};

// Threads that help whoever calls, one caller at a time.
class Helpers {
  public:
    using Work = void (*)(void *) noexcept;

    // Those of this library. They stay until the process ends.
    static Helpers &ours() {
        static Helpers *const helpers = made();
        return *helpers;
    }

    // work(own) by the caller and by as many helpers at most as come before the caller is through with it. Where they
    // help another, or the system has none, the caller does it alone.
    void help(uint32_t helpers, Work work, void *own) {
        if (busy_.exchange(true, std::memory_order_acquire)) return work(own);
        hire(helpers);
        send_away();
        work_ = work, own_ = own;
        places_.number = helpers * PLACE;
        ++turn_.number;
        turn_.wake(helpers);
        work(own);
        for (uint32_t left = places_.number &= AT_WORK; left; left = places_.number)
            if (!awake([&] { return places_.number != left; })) places_.sleep(left);
        busy_.store(false, std::memory_order_release);
    }

  private:
    struct Helper {
        explicit Helper(Helpers &whose) {
            std::thread started([this, &whose, turn = whose.turn_.number.load()] { whose.serve(*this, turn); });
            thread = started.native_handle();
            started.detach();
        }
        pthread_t thread;
        std::atomic<int> cpu{-1};  // where it was when it last had nothing to do
    };

    static constexpr std::chrono::microseconds AWAKE{100};
    // Of the number of places: those at work, and what a helper adds that may still come.
    static constexpr uint32_t AT_WORK = 0xffff, PLACE = AT_WORK + 1;

    // Whether `come` is true before some time is over, which is often shorter than to sleep and be woken.
    template <class Come>
    static bool awake(Come come) {
        const auto until = std::chrono::steady_clock::now() + AWAKE;
        while (!come()) {
            if (std::chrono::steady_clock::now() >= until) return false;
            __builtin_ia32_pause();
        }
        return true;
    }

    static Helpers *made() {
        static Helpers *const helpers = new Helpers;
        // A child of fork() has none of its parent's threads, whatever these are at.
        pthread_atfork(nullptr, nullptr, [] { new (helpers) Helpers; });
        return helpers;
    }

    void hire(uint32_t helpers) {
        try {
            while (hired_.size() < helpers) hired_.emplace_back(*this);
        } catch (const std::exception &) {  // no thread, or no memory, for another
        }
    }

    // Helpers that are on the caller's CPU go to others, if it may use any.
    void send_away() {
        const int here = sched_getcpu();
        cpu_set_t others;
        CPU_ZERO(&others);
        for (Helper &helper : hired_) {
            if (helper.cpu != here) continue;
            if (!CPU_COUNT(&others)) {
                if (sched_getaffinity(0, sizeof others, &others)) return;
                CPU_CLR(here, &others);
                if (!CPU_COUNT(&others)) return;
            }
            pthread_setaffinity_np(helper.thread, sizeof others, &others);
            helper.cpu = -1;
        }
    }

    void serve(Helper &helper, uint32_t seen) {
        while (true) {
            helper.cpu = sched_getcpu();
            if (!awake([&] { return turn_.number != seen; })) turn_.sleep(seen);
            seen = turn_.number;
            uint32_t places = places_.number;
            while (places >= PLACE)
                if (places_.number.compare_exchange_weak(places, places - PLACE + 1)) {
                    work_(own_);
                    if (!(--places_.number & AT_WORK)) places_.wake(1);
                    break;
                }
        }
    }

    std::atomic<bool> busy_{false};
    Awaited turn_, places_;  // calls so far; places for helpers in this one
    std::deque<Helper> hired_;  // which stay where they are
    Work work_ = nullptr;
    void *own_ = nullptr;
};
#endif

namespace {

// work(number) for each number below `count`, by so many threads. What the first of them throws the caller does, when all
// have stopped.
template <class Work>
void share_work(int threads, int64_t count, Work work) {
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr thrown;
    auto some = [&]() noexcept {
        try {
            for (int64_t number; (number = next++) < count;) work(number);
        } catch (...) {
            next = count;  // no other is begun
            if (!failed.exchange(true)) thrown = std::current_exception();
        }
        __builtin_ia32_sfence();  // what went past the caches is there before the threads meet
    };
    const int64_t helpers = std::min<int64_t>(threads, count) - 1;
    if (helpers <= 0) {
        some();
    } else {
        const auto call = [](void *own) noexcept { (*static_cast<decltype(some) *>(own))(); };
#ifdef THREADS_OF_OPENMP
        GOMP_parallel(call, &some, threads, 0);
#else
        Helpers::ours().help(helpers, call, &some);
#endif
    }
    if (failed) std::rethrow_exception(thrown);
}

}  // namespace
