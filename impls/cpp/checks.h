// Checks of the arguments of the entry points, which run before any memory is read. A refused argument throws
// `BadArgument`, which each interface turns into an error of its framework.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace vocabench {

// An argument that a kernel does not accept. The message is "name=value: allowed: ...".
struct BadArgument : std::invalid_argument {
    BadArgument(const std::string &name, const std::string &value, const std::string &allowed)
        : std::invalid_argument(name + "=" + value + ": allowed: " + allowed) {}
};

// The memory of a dense array whose shape is not known.
template <class Number>
struct Memory {
    Number *data;
    int64_t bytes;
};

// A dense array as an interface passes it, with its shape, or else with rank UNKNOWN. An absent array has no elements.
template <class Number>
struct Array {
    static constexpr int UNKNOWN = -1, MOST_AXES = 3;

    Number *data;
    int64_t bytes;
    int rank = UNKNOWN;
    std::array<int64_t, MOST_AXES> sizes{};  // of the first axes; 0 for those that the array does not have

    Array(Number *data, int64_t bytes, int rank) : data(data), bytes(bytes), rank(rank) {}
    Array(const Memory<Number> &memory) : data(memory.data), bytes(memory.bytes) {}

    int64_t elements() const { return bytes / static_cast<int64_t>(sizeof(Number)); }
    Number *or_null() const { return bytes ? data : nullptr; }
};

template <class Sizes>
static std::string shape_text(const Sizes &sizes, int rank) {
    std::string text;
    for (int axis = 0; axis < rank; ++axis) text += (axis ? ", " : "") + std::to_string(sizes.begin()[axis]);
    return "(" + text + (rank == 1 ? ",)" : ")");
}

// Refuses an array of another shape, or, if its shape is not known, of another number of bytes.
template <class Number>
static void require_shape(const char *name, const Array<Number> &array, std::initializer_list<int64_t> sizes) {
    int64_t bytes = sizeof(Number);
    bool agrees = true;
    for (int64_t size : sizes) agrees = agrees && size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes);
    const int rank = sizes.size(), known = std::min(array.rank, Array<Number>::MOST_AXES);
    if (array.rank == Array<Number>::UNKNOWN)
        agrees = agrees && array.bytes == bytes;
    else
        agrees = agrees && array.rank == rank && std::equal(sizes.begin(), sizes.end(), array.sizes.begin());
    if (agrees) return;
    const std::string allowed = "shape " + shape_text(sizes, rank);
    if (array.rank == Array<Number>::UNKNOWN)
        throw BadArgument(name, std::to_string(array.bytes) + " bytes",
                          allowed + " of " + std::to_string(sizeof(Number)) + " bytes");
    throw BadArgument(name, shape_text(array.sizes, known) + (array.rank > known ? " and more axes" : ""), allowed);
}

// The same for an array that may be absent.
template <class Number>
static void require_shape_if_any(const char *name, const Array<Number> &array, std::initializer_list<int64_t> sizes) {
    if (array.bytes) require_shape(name, array, sizes);
}

// Refuses a number that is not between `least` and `most`.
static void require_between(const char *name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most)
        throw BadArgument(name, std::to_string(value),
                          most < least ? "none" : std::to_string(least) + " to " + std::to_string(most));
}

static void require_equal(const char *name, int64_t value, int64_t allowed) {
    if (value != allowed) throw BadArgument(name, std::to_string(value), std::to_string(allowed));
}

static void require_at_least(const char *name, int64_t value, int64_t least) {
    if (value < least) throw BadArgument(name, std::to_string(value), "at least " + std::to_string(least));
}

// Refuses a number that is not above 0 and at most `most`.
static void require_within(const char *name, float value, float most) {
    if (!(value > 0 && value <= most))
        throw BadArgument(name, std::to_string(value), "above 0, up to " + std::to_string(most));
}

// Refuses indices outside of 0 to count - 1.
template <class Index>
static void require_indices(const char *name, const Array<const Index> &indices, int64_t count) {
    const Index *first = indices.data, *last = first + indices.elements();
    Index lowest = 0, highest = -1;
    for (const Index *index = first; index < last; ++index)
        lowest = std::min(lowest, *index), highest = std::max(highest, *index);
    if (lowest < 0 || highest >= count) require_between(name, lowest < 0 ? lowest : highest, 0, count - 1);
}

}  // namespace vocabench
