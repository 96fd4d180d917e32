// The best k words of a search.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "likeliest.h"

namespace vocabench {

struct Word {
    float value;
    int64_t id;
    // Whether this word comes before `other`: higher values first, equal values by id.
    bool operator<(const Word &other) const { return value > other.value || (value == other.value && id < other.id); }
};

// The k best words among those added, best first.
class Best {
  public:
    explicit Best(int64_t k) : k_(k) { words_.reserve(std::min(k, RESERVED)); }
    // Lowest value that a new word may have. A word of exactly this value also needs a lower id.
    float least() const { return full() ? words_.back().value : -std::numeric_limits<float>::infinity(); }
    // Moves the words of `other` into this list.
    void take(Best &other) {
        for (const Word &word : other.words_) put(word);
        other.words_.clear();
    }
    bool full() const { return static_cast<int64_t>(words_.size()) == k_; }
    void put(const Word &word) {
        if (full()) {
            if (!(word < words_.back())) return;
            words_.pop_back();
        }
        words_.insert(std::upper_bound(words_.begin(), words_.end(), word), word);
    }
    const std::vector<Word> &words() const { return words_; }

  private:
    static constexpr int64_t RESERVED = 64;  // words to reserve memory for at the start
    int64_t k_;
    std::vector<Word> words_;
};

// Writes the result of a search. A vector that contains NaN may have fewer than k words; its result is marked as
// unknown.
template <class Id>
static void write(const Best &best, float share, const Likeliest<Id> &likeliest) {
    const bool known = best.full();
    *likeliest.share = known ? share : 0;
    for (int64_t rank = 0; rank < likeliest.k; ++rank) {
        const Word unknown{std::numeric_limits<float>::quiet_NaN(), rank};
        const Word word = known ? best.words()[rank] : unknown;
        likeliest.values[rank] = word.value;
        likeliest.ids[rank] = word.id;
    }
}

}  // namespace vocabench
