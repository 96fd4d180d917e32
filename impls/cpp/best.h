// The likeliest words that a search has met.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "likeliest.h"

namespace {

struct Word {
    float value;
    int64_t id;
    bool operator<(const Word &other) const { return value > other.value || (value == other.value && id < other.id); }
};

// The k best of those that were put in, best first.
class Best {
  public:
    explicit Best(int64_t k) : k_(k) { words_.reserve(std::min(k, FEW)); }
    // The lowest value that may still get in; another of that value by its number.
    float least() const { return full() ? words_.back().value : -std::numeric_limits<float>::infinity(); }
    // Those of another are put in, which has none then.
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
    static constexpr int64_t FEW = 64;  // words for which there is room from the start
    int64_t k_;
    std::vector<Word> words_;
};

// What was found, of a vector that is no numbers too, of which words may be too few.
template <class Id>
void write(const Best &best, float share, const Likeliest<Id> &likeliest) {
    const bool known = best.full();
    *likeliest.share = known ? share : 0;
    for (int64_t place = 0; place < likeliest.k; ++place) {
        const Word unknown{std::numeric_limits<float>::quiet_NaN(), place};
        const Word word = known ? best.words()[place] : unknown;
        likeliest.values[place] = word.value;
        likeliest.ids[place] = word.id;
    }
}

}  // namespace
