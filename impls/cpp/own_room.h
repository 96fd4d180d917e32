// Room that a thread keeps from call to call.
//
// Threads that ask the allocator at once wait for one another, where a process has few arenas, and Linux may wake one that
// has waited on the CPU of the other: two on one CPU take milliseconds for what takes microseconds.

#pragma once

#include <cstddef>
#include <memory>

namespace {

// At least `size` numbers of this thread's own, of any value, until it asks for those of the same use again.
template <class Use>
float *own_room(size_t size) {
    static_assert(sizeof(Use), "or `own_room<struct Use>` within a function would declare a use of that function's own");
    struct Room {
        std::unique_ptr<float[]> numbers;
        size_t size = 0;
    };
    thread_local Room kept;
    if (kept.size < size) {
        kept = {};  // before the next is made: both at once would take more memory
        kept = {std::unique_ptr<float[]>(new float[size]), size};
    }
    return kept.numbers.get();
}

}  // namespace
