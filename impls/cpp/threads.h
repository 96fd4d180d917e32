// Threads that share work.
//
// The kernels are compiled once for all interfaces. An interface determines whose threads they use by the source that
// it is linked with: `openmp_threads.cpp`, for frameworks that load OpenMP, or `helper_threads.cpp`.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

namespace vocabench {

// Runs work(data) in the caller and in up to `helpers` other threads, which are fewer than `threads`, and returns when
// all have finished. OpenMP keeps its threads only if each call has the same `threads`.
void work_in_threads(int threads, int helpers, void (*work)(void *) noexcept, void *data);

// Calls work(number) for each number below `count` in up to `threads` threads. The first exception that `work` throws
// is rethrown in the caller when all threads have stopped.
template <class Work>
static void share_work(int threads, int64_t count, Work work) {
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr thrown;
    auto take_numbers = [&]() noexcept {
        try {
            for (int64_t number; (number = next++) < count;) work(number);
        } catch (...) {
            next = count;  // starts no other number
            if (!failed.exchange(true)) thrown = std::current_exception();
        }
        __builtin_ia32_sfence();  // makes non-temporal stores visible before the threads join
    };
    const int64_t helpers = std::min<int64_t>(threads, count) - 1;
    if (helpers <= 0) {
        take_numbers();
    } else {
        const auto call = [](void *data) noexcept { (*static_cast<decltype(take_numbers) *>(data))(); };
        work_in_threads(threads, static_cast<int>(helpers), call, &take_numbers);
    }
    if (failed) std::rethrow_exception(thrown);
}

}  // namespace vocabench
