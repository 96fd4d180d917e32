// See `cluster_search.h`.
//
// No word is likelier than its cluster. Therefore the few likeliest clusters of each vector are searched first, and
// then, in order of likelihood, those that are at least as likely as the k-th best word so far. The search runs for all
// vectors together in at most three rounds, and reads each cluster once per round. Reading a cluster takes as long as
// multiplying it with a few vectors, so in the first round a cluster that is read for some vectors is also searched for
// the others that are likely to need it later.
//
// If most clusters are about as likely as the likeliest, the k-th best word is less likely than nearly all of them, and
// all are searched at once. Each thread keeps its own list of the best words of each vector, so that few other words
// need to be compared one by one.

#include "cluster_search.h"

#include <cmath>
#include <limits>

#include "best.h"
#include "log_softmax.h"
#include "scratch.h"
#include "strips.h"
#include "threads.h"
#include "tiles.h"

namespace vocabench {

namespace {

constexpr int64_t FIRST = 6;        // clusters searched for each vector in the first round
constexpr int64_t NEXT = 24;        // most clusters in the second round: the k-th best of so few words is far too low
constexpr int64_t LIKELY = 10;      // the k-th best word, at most 1 / k likely, may well be this many times less likely
constexpr int64_t WORDS = 64;       // words whose vectors stay in the L2 cache while strips of vectors are processed
constexpr int64_t TOGETHER = 1024;  // most vectors searched together: memory grows with vectors times clusters
static_assert(TOGETHER * MOST_CLUSTERS <= std::numeric_limits<int32_t>::max());

struct Scores {};

// The state of the search for one vector.
struct State {
    Best best;
    std::vector<char> taken;  // (C,) whether a cluster has been searched or is in `next`
    int64_t expanded = 0;
    std::vector<int32_t> next;  // clusters to search in this round
    State(int64_t k, int64_t clusters) : best(k), taken(clusters, 0) { next.reserve(clusters); }

    void take(int32_t cluster) {
        taken[cluster] = 1;
        next.push_back(cluster);
    }
};

// Vectors, and the words of a cluster to search for them.
template <class Id>
struct Visit {
    Picked<const float> vectors;
    int64_t count;
    Dense<const float> words;
    int64_t size;
    const float *bias;         // (size,) or null
    const Id *ids;             // (size,)
    const float *log_cluster;  // (count,) log P(cluster)
    const float *least;        // (count,) lower values cannot be among the best
    Best *best;                // lists of this thread, by vector

    Best &best_of(int64_t vector) const { return best[vectors.index[vector]]; }
    float least_of(int64_t vector) const { return std::max(least[vector], best_of(vector).least()); }
};

// Calls work(index) for the `count` values that are at least `least()`, which may grow meanwhile.
template <class Least, class Work>
void each_at_least(const float *values, int64_t count, Least least, Work work) {
    Vector lowest = Vector{} + least();
    int64_t index = 0;
    for (; index + LANES <= count; index += LANES)
        for (unsigned mask = where_at_least(load(values + index), lowest); mask; mask &= mask - 1) {
            work(index + __builtin_ctz(mask));
            lowest = Vector{} + least();
        }
    for (; index < count; ++index)
        if (values[index] >= least()) work(index);
}

// Searches a cluster vector by vector, for few vectors.
template <class Id>
void by_vector(const Visit<Id> &visit) {
    float *const scores = scratch<Scores>(visit.count * visit.size);
    dots(visit.vectors, visit.count, visit.words, visit.size, scores, visit.size);
    for (int64_t vector = 0; vector < visit.count; ++vector) {
        float *row = scores + vector * visit.size;
        if (visit.bias)
            for (int64_t s = 0; s < visit.size; ++s) row[s] += visit.bias[s];
        log_softmax(row, visit.size, visit.log_cluster[vector]);
        Best &best = visit.best_of(vector);
        const float least = visit.least_of(vector);
        each_at_least(
            row, visit.size, [&] { return std::max(least, best.least()); },
            [&](int64_t s) { best.put({row[s], visit.ids[s]}); });
    }
}

// Searches a cluster for many vectors, one per lane. This needs no sums across lanes, and the words are processed in
// strips that stay in the L1 cache.
template <class Id>
void side_by_side(const Visit<Id> &visit, const Strips &across) {
    const int64_t places = across.dim();
    float *const scores = scratch<Scores>(visit.size * places);
    for (int64_t s = 0; s < visit.size; s += WORDS)
        products(visit.words.from(s), std::min(WORDS, visit.size - s), across, {scores + s * places, places});
    for (int64_t first = 0; first < visit.count; first += LANES) {
        const int lanes = std::min<int64_t>(LANES, visit.count - first);
        const Dense<float> columns{scores + first, places};
        const Vector highest = add_biases(columns, visit.size, visit.bias);
        Vector total = {}, shift = {}, least = Vector{} + std::numeric_limits<float>::infinity();
        for (int64_t s = 0; s < visit.size; ++s) total += exp(load(columns[s]) - highest);
        for (int lane = 0; lane < lanes; ++lane) {
            shift[lane] = visit.log_cluster[first + lane] - highest[lane] - std::log(total[lane]);
            least[lane] = visit.least_of(first + lane);
        }
        for (int64_t s = 0; s < visit.size; ++s) {
            const Vector value = load(columns[s]) + shift;
            for (unsigned mask = where_at_least(value, least); mask; mask &= mask - 1) {
                const int lane = __builtin_ctz(mask);
                Best &best = visit.best_of(first + lane);
                best.put({value[lane], visit.ids[s]});
                least[lane] = std::max(least[lane], best.least());
            }
        }
    }
}

// Whether most of `count` clusters are at least half as likely as the likeliest.
bool is_flat(const float *log_cluster, int64_t count) {
    const float half = *std::max_element(log_cluster, log_cluster + count) - std::log(2.0f);
    return 2 * std::count_if(log_cluster, log_cluster + count, [=](float value) { return value >= half; }) > count;
}

// Chooses the clusters of a vector for a round, among those not yet searched.
void choose(State &state, int64_t round, const float *log_cluster, int64_t count) {
    state.next.clear();
    const float least = state.best.least();  // a word of equal value and lower id may still be found
    const int64_t room = round == 0 && !is_flat(log_cluster, count) ? FIRST : round == 1 ? NEXT : count;
    Best likeliest(room);
    each_at_least(
        log_cluster, count, [&] { return std::max(least, likeliest.least()); },
        [&](int64_t cluster) {
            if (state.taken[cluster]) return;
            if (room < count)
                likeliest.put({log_cluster[cluster], cluster});
            else
                state.take(cluster);
        });
    for (const Word &cluster : likeliest.words()) state.take(cluster.id);
}

// Adds clusters that are read for other vectors and that this vector is likely to need.
void join(State &state, const std::vector<char> &is_read, float likely, const float *log_cluster) {
    for (size_t cluster = 0; cluster < is_read.size(); ++cluster)
        if (is_read[cluster] && log_cluster[cluster] >= likely && !state.taken[cluster]) state.take(cluster);
}

// The pairs of a vector and a cluster to search in a round, sorted by cluster.
struct Pairs {
    std::vector<int32_t> end;     // (C,) one past the last pair of each cluster
    std::vector<int64_t> row_of;  // vector of each pair

    Pairs(const std::vector<State> &states, const std::vector<int64_t> &open, int64_t clusters) : end(clusters, 0) {
        for (int64_t row : open)
            for (int32_t cluster : states[row].next) ++end[cluster];
        for (int64_t cluster = 1; cluster < clusters; ++cluster) end[cluster] += end[cluster - 1];
        row_of.resize(end.back());
        std::vector<int32_t> place(end);
        for (int64_t row : open)
            for (int32_t cluster : states[row].next) row_of[--place[cluster]] = row;
    }
};

// The search of one round for one batch of vectors.
template <class Id>
class Round {
  public:
    Round(const Searched &searched, const ClusteredWords<Id> &words, const std::vector<State> &states,
          const std::vector<int64_t> &open)
        : searched_(searched), words_(words), states_(states), pairs_(states, open, words.clusters.count) {
        Clusters clusters = words.clusters;
        clusters.end = pairs_.end.data();
        pieces_ = pieces_of_tokens(clusters);
        // If each cluster is searched for all vectors, as with near-uniform distributions, they are transposed only
        // once.
        const int64_t pairs = pairs_.row_of.size(), every = open.size() * clusters.count;
        shared_rows_ = pairs == every ? open.size() : 0;
        for (int64_t first = 0; first < shared_rows_; first += TOKENS)
            shared_.push_back(laid({searched.vectors, clusters.dim, pairs_.row_of.data() + first},
                                   std::min(TOKENS, shared_rows_ - first)));
    }

    int64_t pieces() const { return pieces_.size(); }

    // Searches a piece and adds its words to the lists `best` of a thread.
    void search(int64_t number, Best *best) const {
        const auto [cluster, first, count] = pieces_[number];
        const Clusters &clusters = words_.clusters;
        const int64_t start = clusters.start[cluster], dim = clusters.dim;
        if (!clusters.size[cluster]) return;
        float log_cluster[TOKENS], least[TOKENS];
        for (int64_t pair = 0; pair < count; ++pair) {
            const int64_t row = pairs_.row_of[first + pair];
            log_cluster[pair] = searched_.log_cluster[row * clusters.count + cluster];
            least[pair] = states_[row].best.least();
        }
        const Picked<const float> vectors{searched_.vectors, dim, pairs_.row_of.data() + first};
        const Visit<Id> visit{vectors,
                              count,
                              {words_.words + start * dim, dim},
                              clusters.size[cluster],
                              words_.bias ? words_.bias + start : nullptr,
                              words_.ids_of + cluster * clusters.slots,
                              log_cluster,
                              least,
                              best};
        if (count < LAID)
            by_vector(visit);
        else if (shared_rows_)
            side_by_side(visit, shared_[first % shared_rows_ / TOKENS]);
        else
            side_by_side(visit, laid_in_scratch(vectors, count));
    }

  private:
    const Searched &searched_;
    const ClusteredWords<Id> &words_;
    const std::vector<State> &states_;
    Pairs pairs_;
    std::vector<Piece> pieces_;
    int64_t shared_rows_;
    std::vector<Strips> shared_;
};

// `likeliest_words` for at most TOGETHER vectors.
template <class Id>
void likeliest_of_few(int threads, const Searched &searched, const ClusteredWords<Id> &words,
                      const Likeliest<Id> &likeliest) {
    const int64_t rows = searched.count, clusters = words.clusters.count, k = likeliest.k;
    std::vector<State> states;
    states.reserve(rows);
    std::vector<std::vector<Best>> thread_best(threads);  // the lists of each thread in a round
    std::vector<int64_t> open(rows);
    for (int64_t row = 0; row < rows; ++row) {
        states.emplace_back(k, clusters);
        for (std::vector<Best> &best : thread_best) best.emplace_back(k);
        open[row] = row;
    }

    const auto for_open = [&](auto work) {
        share_work(threads, open.size(), [&](int64_t index) {
            const int64_t row = open[index];
            work(states[row], searched.log_cluster + row * clusters);
        });
    };
    for (int64_t round = 0;; ++round) {
        for_open([&](State &state, const float *log_cluster) { choose(state, round, log_cluster, clusters); });
        if (round == 0) {
            std::vector<char> is_read(clusters, 0);
            for (const State &state : states)
                for (int32_t cluster : state.next) is_read[cluster] = 1;
            const float likely = -std::log(static_cast<float>(LIKELY * k));
            for_open([&](State &state, const float *log_cluster) { join(state, is_read, likely, log_cluster); });
        }
        open.erase(std::remove_if(open.begin(), open.end(), [&](int64_t row) { return states[row].next.empty(); }),
                   open.end());
        if (open.empty()) break;

        const Round<Id> search(searched, words, states, open);
        std::atomic<int64_t> next{0};
        share_work(threads, threads, [&](int64_t thread) {
            for (int64_t piece; (piece = next++) < search.pieces();) search.search(piece, thread_best[thread].data());
        });

        share_work(threads, open.size(), [&](int64_t index) {
            State &state = states[open[index]];
            for (std::vector<Best> &best : thread_best) state.best.take(best[open[index]]);
            state.expanded += state.next.size();
        });
    }

    for (int64_t row = 0; row < rows; ++row) {
        const State &state = states[row];
        write(state.best, static_cast<float>(state.expanded) / clusters, likeliest.from(row));
    }
}

}  // namespace

template <class Id>
void likeliest_words(int threads, const Searched &searched, const ClusteredWords<Id> &words,
                     const Likeliest<Id> &likeliest) {
    for (int64_t first = 0; first < searched.count; first += TOGETHER) {
        const Searched batch{std::min(TOGETHER, searched.count - first), searched.vectors + first * words.clusters.dim,
                             searched.log_cluster + first * words.clusters.count};
        likeliest_of_few(threads, batch, words, likeliest.from(first));
    }
}

template void likeliest_words(int, const Searched &, const ClusteredWords<int32_t> &, const Likeliest<int32_t> &);
template void likeliest_words(int, const Searched &, const ClusteredWords<int64_t> &, const Likeliest<int64_t> &);

}  // namespace vocabench
