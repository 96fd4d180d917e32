// Vectors laid out in strips, one after the other, which a tile of sums reads row by row: in the rows themselves, a
// power of two apart, a strip would crowd a few places of a cache.

#pragma once

#include <limits>
#include <memory>

#include "own_room.h"
#include "sums.h"
#include "tiles.h"

namespace {

class Strips {
  public:
    // dim: of whole vectors.
    Strips(int64_t rows, int64_t dim)
        : rows_(rows), dim_(dim), owned_(new float[rows * dim]), numbers_(owned_.get()) {}
    // In room for rows * dim numbers, which is there for as long.
    Strips(int64_t rows, int64_t dim, float *room) : rows_(rows), dim_(dim), numbers_(room) {}

    int64_t dim() const { return dim_; }
    template <int VECTORS>
    Dense<float> at(int64_t vector) const {
        return {numbers_ + vector * LANES * rows_, VECTORS * LANES};
    }
    // work(strip, first number, how many) of each.
    template <class Work>
    void each(Work work) {
        by_strips(dim_ / LANES, [&](int64_t v, auto some) { work(at<some()>(v), v * LANES, some() * LANES); });
    }
    void copy(Dense<const float> from, int64_t rows) {
        each([&](Dense<float> strip, int64_t first, int64_t count) {
            for (int64_t row = 0; row < rows; ++row) std::copy_n(from[row] + first, count, strip[row]);
        });
    }
    // Of the first `vectors` the numbers of each, one below the other; zeros beyond. By lines of theirs, so that what is
    // written to stays in the nearest cache until its lines are full: a vector at a time, it takes five times as long.
    template <class Vectors>
    void copy_across(Vectors from, int64_t vectors) {
        each([&](Dense<float> strip, int64_t first, int64_t count) {
            for (int64_t start = 0; start < rows_; start += LINE) {
                const int64_t end = std::min<int64_t>(start + LINE, rows_);
                for (int64_t number = first; number < first + count; ++number) {
                    float *place = strip.first + number - first;
                    const float *own = number < vectors ? from[number] : nullptr;
                    for (int64_t d = start; d < end; ++d) place[d * count] = own ? own[d] : 0;
                }
            }
        });
    }
    void clear() { std::fill_n(numbers_, rows_ * dim_, 0.0f); }

  private:
    int64_t rows_, dim_;
    std::unique_ptr<float[]> owned_;
    float *numbers_;
};

constexpr int64_t LAID = 12;  // vectors that are laid side by side at least: of fewer most lanes would be empty

int64_t whole_lanes(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

// Vectors, a lane each.
Strips laid(Picked<const float> vectors, int64_t count) {
    Strips across(vectors.dim, whole_lanes(count));
    across.copy_across(vectors, count);
    return across;
}

struct Laid {};

// The same in room of the thread's own, until it lays others.
Strips laid_in_own_room(Picked<const float> vectors, int64_t count) {
    const int64_t places = whole_lanes(count);
    Strips across(vectors.dim, places, own_room<Laid>(vectors.dim * places));
    across.copy_across(vectors, count);
    return across;
}

// out (size, across.dim()) of words (size, dim) with vectors that are laid across: a word's are one after the other.
void products(Dense<const float> words, int64_t size, const Strips &across, Dense<float> out) {
    by_strips(across.dim() / LANES, [&](int64_t v, auto some) {
        const Dense<float> own{out.first + v * LANES, out.dim};
        with_constant(v == 0, [&](auto ahead) {
            const auto strip = across.at<some()>(v);
            strip_sums<some(), To::SET, ahead()>(words.first, words.dim, 1, size, words.dim, strip, 0, own);
        });
    });
}

// The biases (size,) of words, or null, on top of their scores with vectors in lanes; and the highest of each lane, of
// scores of -inf too.
Vector add_biases(Dense<float> scores, int64_t size, const float *bias) {
    Vector highest = Vector{} + std::numeric_limits<float>::lowest();
    for (int64_t s = 0; s < size; ++s) {
        const Vector score = bias ? load(scores[s]) + bias[s] : load(scores[s]);
        highest = score > highest ? score : highest;
        store(scores[s], score);
    }
    return highest;
}

}  // namespace
