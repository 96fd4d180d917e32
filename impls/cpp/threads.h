// How threads share work: those of OpenMP, where a framework has loaded it, or ours, which sleep when there is none.
//
// To make a thread takes longer than to find the likeliest words of a vector, and so may waking one.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

#ifdef THREADS_OF_OPENMP
// What GCC makes of `#pragma omp parallel`. Called by its name, any compiler shares the threads of the OpenMP that the
// framework has loaded, where each would want its own.
extern "C" void GOMP_parallel(void (*work)(void *), void *own, unsigned threads, unsigned flags);
#else
// Threads that help whoever calls, one caller at a time.
class Helpers {
  public:
    using Work = void (*)(void *);

    // Those of this library. They stay until the process ends.
    static Helpers &ours() {
        static Helpers *helpers = new Helpers;
        return *helpers;
    }

    // work(own) by the caller and by as many helpers at most as come before the caller is through with it. Where they
    // help another, or the system has none, the caller does it alone.
    void help(int64_t helpers, Work work, void *own) {
        const std::unique_lock<std::mutex> ours(caller_, std::try_to_lock);
        if (!ours) return work(own);
        hire(helpers);
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            work_ = work, own_ = own, wanted_ = helpers;
            turn_.fetch_add(1, std::memory_order_release);
        }
        called_.notify_all();
        work(own);
        awake([&] { return !helping_.load(std::memory_order_acquire); });
        std::unique_lock<std::mutex> lock(mutex_);
        wanted_ = 0;
        done_.wait(lock, [&] { return !helping_.load(std::memory_order_relaxed); });
    }

  private:
    static constexpr std::chrono::microseconds AWAKE{100};

    // Returns once `come` is true or some time is over, which is often shorter than to sleep and be woken.
    template <class Come>
    static void awake(Come come) {
        const auto until = std::chrono::steady_clock::now() + AWAKE;
        while (!come() && std::chrono::steady_clock::now() < until) __builtin_ia32_pause();
    }

    void hire(int64_t helpers) {
        try {
            for (; hired_ < helpers; ++hired_) std::thread([this, turn = turn_.load()] { serve(turn); }).detach();
        } catch (const std::system_error &) {
        }
    }

    void serve(uint64_t seen) {
        while (true) {
            awake([&] { return turn_.load(std::memory_order_acquire) != seen; });
            std::unique_lock<std::mutex> lock(mutex_);
            called_.wait(lock, [&] { return turn_.load(std::memory_order_relaxed) != seen; });
            seen = turn_.load(std::memory_order_relaxed);
            if (!wanted_) continue;
            --wanted_;
            helping_.fetch_add(1, std::memory_order_relaxed);
            const Work work = work_;
            void *own = own_;
            lock.unlock();
            work(own);
            lock.lock();
            if (helping_.fetch_sub(1, std::memory_order_release) == 1) done_.notify_one();
        }
    }

    std::mutex caller_, mutex_;
    std::condition_variable called_, done_;
    std::atomic<uint64_t> turn_{0};  // of calls
    std::atomic<int64_t> helping_{0};
    int64_t hired_ = 0, wanted_ = 0;
    Work work_ = nullptr;
    void *own_ = nullptr;
};
#endif

namespace {

// work(number) for each number below `count`, by so many threads.
template <class Work>
void share_work(int threads, int64_t count, Work work) {
    std::atomic<int64_t> next{0};
    auto some = [&] {
        for (int64_t number; (number = next++) < count;) work(number);
        __builtin_ia32_sfence();  // what went past the caches is there before the threads meet
    };
    const auto call = [](void *own) { (*static_cast<decltype(some) *>(own))(); };
    const int64_t helpers = std::min<int64_t>(threads, count) - 1;
    if (helpers <= 0) return some();
#ifdef THREADS_OF_OPENMP
    GOMP_parallel(call, &some, threads, 0);
#else
    Helpers::ours().help(helpers, call, &some);
#endif
}

}  // namespace
