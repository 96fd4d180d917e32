// Helpers that sleep between calls. See `threads.h`.
//
// Starting a thread takes longer than finding the likeliest words of a vector, and so may waking one. Linux tends to
// wake a thread on the CPU of its waker or on its own last CPU, even if another one is idle, and leaves two threads on
// one CPU for milliseconds, which is longer than a call. Therefore a helper that would wake on the caller's CPU is
// moved away first, and the caller spins before it sleeps.

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <new>
#include <thread>

#include "threads.h"

namespace vocabench {

namespace {

// A number whose changes threads can sleep for.
class Awaited {
  public:
    std::atomic<uint32_t> number{0};

    // Returns once the number differs from `seen`, or spuriously.
    void sleep(uint32_t seen) {
        ++sleeping_;
        syscall(SYS_futex, &number, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
        --sleeping_;
    }

    // Wakes up to `most` sleepers. To be called after the number has changed.
    void wake(int most) {
        if (sleeping_) syscall(SYS_futex, &number, FUTEX_WAKE_PRIVATE, most, nullptr, nullptr, 0);
    }

  private:
    std::atomic<int> sleeping_{0};
};

// Threads that help one caller at a time.
class Helpers {
  public:
    using Work = void (*)(void *) noexcept;

    // The helpers of this library. They exist until the process ends.
    static Helpers &ours() {
        static Helpers *const helpers = create();
        return *helpers;
    }

    // Runs work(data) in the caller and in up to `helpers` helpers, as many as arrive before the caller has finished.
    // If the helpers are busy with another caller, or the system has no threads, the caller works alone.
    void help(uint32_t helpers, Work work, void *data) {
        if (busy_.exchange(true, std::memory_order_acquire)) return work(data);
        hire(helpers);
        send_away();
        work_ = work, data_ = data;
        places_.number = helpers * PLACE;
        ++turn_.number;
        turn_.wake(helpers);
        work(data);
        for (uint32_t left = places_.number &= AT_WORK; left; left = places_.number)
            if (!spin_until([&] { return places_.number != left; })) places_.sleep(left);
        busy_.store(false, std::memory_order_release);
    }

  private:
    struct Helper {
        explicit Helper(Helpers &pool) {
            std::thread started([this, &pool, turn = pool.turn_.number.load()] { pool.serve(*this, turn); });
            thread = started.native_handle();
            started.detach();
        }
        pthread_t thread;
        std::atomic<int> cpu{-1};  // CPU on which it last became idle
    };

    static constexpr std::chrono::microseconds SPIN{100};
    // `places_` counts helpers at work in its low bits, and places for helpers that may still arrive in its high bits.
    static constexpr uint32_t AT_WORK = 0xffff, PLACE = AT_WORK + 1;

    // Waits for the condition for a short time, which is often quicker than sleeping and being woken. Returns whether
    // it came true.
    template <class Condition>
    static bool spin_until(Condition condition) {
        const auto until = std::chrono::steady_clock::now() + SPIN;
        while (!condition()) {
            if (std::chrono::steady_clock::now() >= until) return false;
            __builtin_ia32_pause();
        }
        return true;
    }

    static Helpers *create() {
        static Helpers *const helpers = new Helpers;
        // A child of fork() has none of its parent's threads, whatever their state.
        pthread_atfork(nullptr, nullptr, [] { new (helpers) Helpers; });
        return helpers;
    }

    void hire(uint32_t helpers) {
        try {
            while (hired_.size() < helpers) hired_.emplace_back(*this);
        } catch (const std::exception &) {  // no more threads or memory: the present helpers must do
        }
    }

    // Moves helpers from the caller's CPU to the other allowed CPUs, if there are any.
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
            if (!spin_until([&] { return turn_.number != seen; })) turn_.sleep(seen);
            seen = turn_.number;
            uint32_t places = places_.number;
            while (places >= PLACE)
                if (places_.number.compare_exchange_weak(places, places - PLACE + 1)) {
                    work_(data_);
                    if (!(--places_.number & AT_WORK)) places_.wake(1);
                    break;
                }
        }
    }

    std::atomic<bool> busy_{false};
    Awaited turn_, places_;     // number of calls; places for helpers in the present call
    std::deque<Helper> hired_;  // a deque, because helpers must not move
    Work work_ = nullptr;
    void *data_ = nullptr;
};

}  // namespace

void work_in_threads(int, int helpers, void (*work)(void *) noexcept, void *data) {
    Helpers::ours().help(helpers, work, data);
}

}  // namespace vocabench
