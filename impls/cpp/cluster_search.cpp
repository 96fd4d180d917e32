// See `cluster_search.h`.
//
// No word is likelier than its cluster. So the likeliest few clusters of each vector are looked through, then those that
// are as likely as the k-th best word found, the likeliest of them first: all vectors together, each cluster read once a
// round, in three rounds at most.

#include "cluster_search.h"

#include <cmath>
#include <limits>

#include "log_softmax.h"
#include "strips.h"
#include "threads.h"
#include "tiles.h"

namespace {

constexpr int64_t FIRST = 6;        // clusters of each vector that are looked through first
constexpr int64_t NEXT = 24;        // that are next at most: the k-th best of so few words is far too low
constexpr int64_t LAID = 12;        // vectors of a cluster that are laid side by side at least
constexpr int64_t WORDS = 64;       // whose vectors stay in the cache next to a core while strips of vectors go by
constexpr int64_t TOGETHER = 1024;  // vectors at most: what is kept of each and each cluster takes memory

struct Word {
    float value;
    int64_t id;
    bool operator<(const Word &other) const { return value > other.value || (value == other.value && id < other.id); }
};

// The k best of those that were put in, best first.
class Best {
  public:
    explicit Best(int64_t k) : k_(k) {}
    // The lowest value that may still get in; another of that value by its number.
    float least() const { return full() ? words_.back().value : -std::numeric_limits<float>::infinity(); }
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
    int64_t k_;
    std::vector<Word> words_;
};

// One vector on the way.
struct State {
    Best best;
    std::vector<char> done;  // (C,) clusters looked through
    int64_t expanded = 0;
    std::vector<int32_t> next;  // clusters to look through in this round
    explicit State(int64_t k) : best(k) {}
};

// Some vectors, and the words of a cluster that is to be looked through for them.
template <class Id>
struct Visit {
    Picked<const float> vectors;
    int64_t count;
    Dense<const float> words;
    int64_t size;
    const float *bias;         // (size,) or null
    const Id *ids;             // (size,)
    const float *log_cluster;  // (count,) log P(cluster)
    const float *least;        // (count,) values that are lower are not wanted
    Best *best;                // (count,) where words go
};

// Vector by vector: of few.
template <class Id>
void by_vector(const Visit<Id> &visit) {
    std::vector<float> scores(visit.count * visit.size);
    dots(visit.vectors, visit.count, visit.words, visit.size, scores.data(), visit.size);
    for (int64_t vector = 0; vector < visit.count; ++vector) {
        float *own = scores.data() + vector * visit.size;
        if (visit.bias)
            for (int64_t s = 0; s < visit.size; ++s) own[s] += visit.bias[s];
        log_softmax(own, visit.size, visit.log_cluster[vector]);
        Best &best = visit.best[vector];
        const float least = visit.least[vector];
        for (int64_t s = 0; s < visit.size; ++s)
            if (own[s] >= least && own[s] >= best.least()) best.put({own[s], visit.ids[s]});
    }
}

// Side by side, a vector a lane: no sum across lanes, and each cluster's words in strips that stay in the nearest cache.
template <class Id>
void side_by_side(const Visit<Id> &visit) {
    const int64_t places = (visit.count + LANES - 1) / LANES * LANES;
    Strips across(visit.words.dim, places);
    across.copy_across(visit.vectors, visit.count);
    std::vector<float> scores(visit.size * places);
    for (int64_t s = 0; s < visit.size; s += WORDS)
        products(visit.words.from(s), std::min(WORDS, visit.size - s), across, {scores.data() + s * places, places});
    for (int64_t first = 0; first < visit.count; first += LANES) {
        const int lanes = std::min<int64_t>(LANES, visit.count - first);
        const Dense<float> own{scores.data() + first, places};
        const Vector highest = add_biases(own, visit.size, visit.bias);
        Vector total = {}, shift = {}, least = Vector{} + std::numeric_limits<float>::infinity();
        for (int64_t s = 0; s < visit.size; ++s) total += exp(load(own[s]) - highest);
        for (int lane = 0; lane < lanes; ++lane) {
            shift[lane] = visit.log_cluster[first + lane] - highest[lane] - std::log(total[lane]);
            least[lane] = visit.least[first + lane];
        }
        for (int64_t s = 0; s < visit.size; ++s) {
            const Vector value = load(own[s]) + shift;
            for (unsigned wanted = where_at_least(value, least); wanted; wanted &= wanted - 1) {
                const int lane = __builtin_ctz(wanted);
                Best &best = visit.best[first + lane];
                best.put({value[lane], visit.ids[s]});
                least[lane] = std::max(least[lane], best.least());
            }
        }
    }
}

// The clusters that a vector wants next, of those not looked through; false where these are too many.
bool choose(State &state, const float *log_cluster, int64_t count, int64_t most) {
    std::vector<int32_t> &next = state.next;
    next.clear();
    const float least = state.best.least();  // at equality a word of lower number may still come
    for (int64_t cluster = 0; cluster < count; ++cluster)
        if (log_cluster[cluster] >= least && !state.done[cluster]) next.push_back(cluster);
    const int64_t room = !state.expanded ? FIRST : state.expanded <= FIRST ? NEXT : count;
    if (static_cast<int64_t>(next.size()) > room) {
        const auto likelier = [&](int32_t one, int32_t other) { return log_cluster[one] > log_cluster[other]; };
        std::nth_element(next.begin(), next.begin() + room, next.end(), likelier);
        next.resize(room);
    }
    return state.expanded + static_cast<int64_t>(next.size()) <= most;
}

// As `likeliest_words`, of vectors that are few enough.
template <class Id>
void likeliest_of_few(int threads, const Searched &searched, const float *words, const float *bias, const Id *ids_of,
                      const Clusters &clusters, int64_t k, int64_t most, float *values, Id *ids, Id *expanded) {
    const int64_t rows = searched.count, dim = clusters.dim, slots = clusters.slots;
    std::vector<State> states(rows, State(k));
    std::vector<int64_t> open(rows);
    for (int64_t row = 0; row < rows; ++row) open[row] = row, states[row].done.assign(clusters.count, 0);

    while (true) {
        std::vector<char> goes_on(open.size());
        share_work(threads, open.size(), [&](int64_t number) {
            State &state = states[open[number]];
            const bool few = choose(state, searched.log_cluster + open[number] * clusters.count, clusters.count, most);
            if (!few) state.expanded = 0;
            goes_on[number] = few && !state.next.empty();
        });
        int64_t kept = 0;
        for (size_t number = 0; number < open.size(); ++number)
            if (goes_on[number]) open[kept++] = open[number];
        open.resize(kept);
        if (open.empty()) break;

        // Pairs of a vector and a cluster, sorted by cluster.
        std::vector<int32_t> end(clusters.count, 0);
        for (int64_t row : open)
            for (int32_t cluster : states[row].next) ++end[cluster];
        for (int64_t cluster = 1; cluster < clusters.count; ++cluster) end[cluster] += end[cluster - 1];
        std::vector<int64_t> row_of(end.back());
        std::vector<int32_t> place(end);
        for (int64_t row : open)
            for (int32_t cluster : states[row].next) row_of[--place[cluster]] = row;

        Clusters wanted = clusters;
        wanted.end = end.data();
        const std::vector<Piece> pieces = pieces_of_tokens(wanted);
        std::vector<Best> found(row_of.size(), Best(k));
        share_work(threads, pieces.size(), [&](int64_t number) {
            const auto [cluster, first, count] = pieces[number];
            const int64_t start = clusters.start[cluster];
            if (!clusters.size[cluster]) return;  // no word of it is found
            std::vector<float> log_cluster(count), least(count);
            for (int64_t pair = 0; pair < count; ++pair) {
                const int64_t row = row_of[first + pair];
                log_cluster[pair] = searched.log_cluster[row * clusters.count + cluster];
                least[pair] = states[row].best.least();
            }
            const Picked<const float> vectors{searched.vectors, dim, row_of.data() + first};
            const Visit<Id> visit{vectors, count, {words + start * dim, dim}, clusters.size[cluster],
                                  bias ? bias + start : nullptr, ids_of + cluster * slots,
                                  log_cluster.data(), least.data(), &found[first]};
            if (count >= LAID)
                side_by_side(visit);
            else
                by_vector(visit);
        });

        std::vector<std::vector<int64_t>> pairs_of(rows);
        for (size_t pair = 0; pair < row_of.size(); ++pair) pairs_of[row_of[pair]].push_back(pair);
        share_work(threads, open.size(), [&](int64_t number) {
            State &state = states[open[number]];
            for (int64_t pair : pairs_of[open[number]])
                for (const Word &word : found[pair].words()) state.best.put(word);
            for (int32_t cluster : state.next) state.done[cluster] = 1;
            state.expanded += state.next.size();
        });
    }

    for (int64_t row = 0; row < rows; ++row) {
        expanded[row] = states[row].best.full() ? states[row].expanded : 0;  // not full where numbers are not finite
        for (int64_t place = 0; place < k; ++place) {
            const Word unknown{std::numeric_limits<float>::quiet_NaN(), place};
            const Word word = expanded[row] ? states[row].best.words()[place] : unknown;
            values[row * k + place] = word.value;
            ids[row * k + place] = word.id;
        }
    }
}

}  // namespace

template <class Id>
void likeliest_words(int threads, const Searched &searched, const float *words, const float *bias, const Id *ids_of,
                     const Clusters &clusters, int64_t k, int64_t most, float *values, Id *ids, Id *expanded) {
    for (int64_t first = 0; first < searched.count; first += TOGETHER) {
        const Searched some{std::min(TOGETHER, searched.count - first), searched.vectors + first * clusters.dim,
                            searched.log_cluster + first * clusters.count};
        likeliest_of_few(threads, some, words, bias, ids_of, clusters, k, most, values + first * k, ids + first * k,
                         expanded + first);
    }
}

template void likeliest_words(int, const Searched &, const float *, const float *, const int32_t *, const Clusters &,
                              int64_t, int64_t, float *, int32_t *, int32_t *);
template void likeliest_words(int, const Searched &, const float *, const float *, const int64_t *, const Clusters &,
                              int64_t, int64_t, float *, int64_t *, int64_t *);
