// Scratch memory that a thread keeps between calls.
//
// Threads that allocate at the same time wait for one another if the process has few malloc arenas. Linux may then wake
// a waiting thread on the CPU of the other, and two threads on one CPU need milliseconds for what takes microseconds.

#pragma once

#include <cstddef>
#include <memory>

namespace vocabench {

// Returns at least `size` uninitialized floats of this thread, valid until its next call with the same `Use`.
template <class Use>
static float *scratch(size_t size) {
    static_assert(sizeof(Use), "an incomplete type, as in `scratch<struct Use>`, would be a new type in each function");
    struct Memory {
        std::unique_ptr<float[]> floats;
        size_t size = 0;
    };
    thread_local Memory kept;
    if (kept.size < size) {
        kept = {};  // frees the old memory first, which lowers the peak
        kept = {std::unique_ptr<float[]>(new float[size]), size};
    }
    return kept.floats.get();
}

}  // namespace vocabench
