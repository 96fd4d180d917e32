// Room that a thread keeps from call to call.
//
// Threads that ask the allocator at once wait for one another, where a process has few arenas, and Linux may wake one that
// has waited on the CPU of the other: two on one CPU take milliseconds for what takes microseconds.

#pragma once

#include <cstddef>
#include <vector>

namespace {

// At least `size` numbers of this thread's own, of any value, until it asks for those of the same use again.
template <class Use, class Number = float>
Number *own_room(size_t size) {
    thread_local std::vector<Number> kept;
    if (kept.size() < size) kept.resize(size);
    return kept.data();
}

}  // namespace
