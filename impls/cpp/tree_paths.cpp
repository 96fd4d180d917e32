// See `tree_paths.h`.
//
// The paths are sorted by their leaves, so that neighbours share nodes. A node is then read while it is in a near
// cache, and its gradient is a sum over consecutive examples.

#include "tree_paths.h"

#include <limits>
#include <numeric>

#include "log_sigmoid.h"
#include "products_with.h"
#include "sums.h"
#include "threads.h"

namespace vocabench {

namespace {

constexpr int AT_ONCE = 4;        // nodes read together
constexpr int64_t EXAMPLES = 16;  // examples per piece of work
constexpr int64_t ROWS = 64;      // rows of a gradient that one piece of work sets to zero

// The nodes of an example's path, and their number. A path with an index outside of the nodes is not valid and has
// none.
struct Path {
    const int32_t *index, *sign;
    int64_t length = 0;
    bool is_valid = true;

    Path(const Paths &paths, int64_t example, int64_t nodes)
        : index(paths.index + example * paths.depth), sign(paths.sign + example * paths.depth) {
        for (; length < paths.depth && sign[length]; ++length)
            is_valid = is_valid && 0 <= index[length] && index[length] < nodes;
        if (!is_valid) length = 0;
    }
};

// Returns the examples from the leftmost leaf to the rightmost. Examples with empty paths come last, because they would
// separate neighbours.
std::vector<int64_t> sorted(const Paths &paths) {
    std::vector<int64_t> order(paths.count);
    std::iota(order.begin(), order.end(), 0);
    const auto place = [&](int64_t example) {
        return paths.depth && paths.sign[example * paths.depth] ? paths.place[example]
                                                                : std::numeric_limits<int32_t>::max();
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t left, int64_t right) { return place(left) < place(right); });
    return order;
}

// Adds the sum of S weighted nodes to dvector, or sets it if `first`.
template <int S>
void add_nodes(const float *weights, const float *const *nodes, int64_t dim, bool first, float *dvector) {
    int64_t d = 0;
    for (; d + LANES <= dim; d += LANES) {
        Vector total = first ? Vector{} : load(dvector + d);
        for (int s = 0; s < S; ++s) total += weights[s] * load(nodes[s] + d);
        store(dvector + d, total);
    }
    for (; d < dim; ++d) {
        float total = first ? 0 : dvector[d];
        for (int s = 0; s < S; ++s) total += weights[s] * nodes[s][d];
        dvector[d] = total;
    }
}

// A range of sorted examples that share a node, and the step of their paths at which it is.
struct Shared {
    int32_t node;
    int64_t step, first, count;
};

std::vector<Shared> shared_nodes(const Paths &paths, const std::vector<int64_t> &order, int64_t nodes) {
    std::vector<Shared> ranges;
    std::vector<size_t> open;  // ranges of the previous path, from the root
    for (int64_t example = 0; example < paths.count; ++example) {
        const Path path(paths, order[example], nodes);
        const int64_t shared = std::min<int64_t>(path.length, open.size());
        int64_t step = 0;
        for (; step < shared && ranges[open[step]].node == path.index[step]; ++step) ++ranges[open[step]].count;
        open.resize(step);
        for (; step < path.length; ++step) {
            open.push_back(ranges.size());
            ranges.push_back({path.index[step], step, example, 1});
        }
    }
    return ranges;
}

// The gradients with respect to the nodes, which threads compute piece by piece.
class NodeGradients {
  public:
    NodeGradients(const Paths &paths, const float *dscores, int64_t nodes, float *dnodes)
        : dim_(paths.dim),
          depth_(paths.depth),
          count_(paths.count),
          nodes_(nodes),
          dnodes_(dnodes),
          aligned_((reinterpret_cast<uintptr_t>(dnodes) | dim_ * sizeof(float)) % sizeof(Vector) == 0),
          order_(sorted(paths)),
          shared_(shared_nodes(paths, order_, nodes)),
          weights_(count_ * depth_),
          is_on_path_(nodes, 0),
          vectors_{paths.vectors, dim_, order_.data()} {
        for (int64_t rank = 0; rank < count_; ++rank)
            std::copy_n(dscores + order_[rank] * depth_, depth_, weights_.data() + rank * depth_);
        for (const Shared &range : shared_) is_on_path_[range.node] = 1;
    }

    int64_t pieces() const { return strips() + 1 + (nodes_ + ROWS - 1) / ROWS; }

    void compute(int64_t piece) const {
        const int64_t first = piece * SUM_VECTORS, whole = dim_ / LANES;
        if (piece < strips())
            with_constant<SUM_VECTORS>(std::min<int64_t>(SUM_VECTORS, whole - first),
                                       [&](auto size) { sum_strip<size()>(first * LANES); });
        else if (piece == strips())
            sum_rest();
        else
            set_zeros(piece - strips() - 1);
    }

  private:
    int64_t strips() const { return (dim_ / LANES + SUM_VECTORS - 1) / SUM_VECTORS; }
    const float *weights_of(const Shared &range) const { return weights_.data() + range.first * depth_ + range.step; }

    // Sums V vectors of elements from d on, for all nodes. The elements are copied first, to stay in a near cache.
    template <int V>
    void sum_strip(int64_t d) const {
        constexpr int64_t WIDTH = V * LANES;
        std::vector<float> strip(count_ * WIDTH);
        for (int64_t rank = 0; rank < count_; ++rank)
            std::copy_n(vectors_[rank] + d, WIDTH, strip.data() + rank * WIDTH);
        with_constant(aligned_, [&](auto is_aligned) {
            constexpr To TO = is_aligned() ? To::MEMORY : To::SET;
            for (const Shared &range : shared_) {
                const Dense<const float> rows{strip.data() + range.first * WIDTH, WIDTH};
                const Dense<float> out{dnodes_ + range.node * dim_ + d, dim_};
                sum_tile<1, V, TO>(weights_of(range), 0, depth_, range.count, rows, 0, out);
            }
        });
    }

    // Sums the elements beyond the last whole vector.
    void sum_rest() const {
        for (const Shared &range : shared_)
            rest_of_sums<To::SET>(weights_of(range), 0, depth_, 1, range.count, vectors_.from(range.first),
                                  dim_ / LANES * LANES, Dense<float>{dnodes_ + range.node * dim_, dim_});
    }

    // Sets the rows of nodes that are on no path to zero.
    void set_zeros(int64_t piece) const {
        const int64_t dim = dim_;  // compilers would read it again after each store past the caches
        for (int64_t node = piece * ROWS; node < std::min((piece + 1) * ROWS, nodes_); ++node) {
            if (is_on_path_[node]) continue;
            float *row = dnodes_ + node * dim;
            if (aligned_)
                for (int64_t d = 0; d < dim; d += LANES) store_past_caches(row + d, Vector{});
            else
                std::fill_n(row, dim, 0.0f);
        }
    }

    int64_t dim_, depth_, count_, nodes_;
    float *dnodes_;
    bool aligned_;
    std::vector<int64_t> order_;
    std::vector<Shared> shared_;
    std::vector<float> weights_;  // (count, depth) of sorted examples
    std::vector<char> is_on_path_;
    Picked<const float> vectors_;
};

}  // namespace

void path_losses(int threads, const Paths &paths, const float *nodes, int64_t node_count, float *losses, float *dscores,
                 float *dvectors) {
    const std::vector<int64_t> order = sorted(paths);
    const int64_t dim = paths.dim, depth = paths.depth;
    share_work(threads, (paths.count + EXAMPLES - 1) / EXAMPLES, [&](int64_t piece) {
        for (int64_t rank = piece * EXAMPLES; rank < std::min((piece + 1) * EXAMPLES, paths.count); ++rank) {
            const int64_t example = order[rank];
            const Path path(paths, example, node_count);
            const int32_t *index = path.index, *sign = path.sign;
            const int64_t length = path.length;
            const float *vector = paths.vectors + example * dim;
            float *path_dscores = dscores + example * depth, *dvector = dvectors + example * dim;
            float loss = path.is_valid ? 0 : std::numeric_limits<float>::quiet_NaN();
            by_pieces<AT_ONCE>(length, [&](int64_t step, auto size) {
                const float *on_path[AT_ONCE];
                float scores[AT_ONCE];
                for (int s = 0; s < size(); ++s) on_path[s] = nodes + index[step + s] * dim;
                products_with<size()>(vector, on_path, dim, scores);
                for (int s = 0; s < size(); ++s) {
                    const float turn = sign[step + s] * scores[s], small = std::exp(-std::abs(turn));
                    loss += std::max(-turn, 0.0f) + std::log1p(small);
                    // The derivative of -log sigma(s x) is -s sigma(-s x).
                    path_dscores[step + s] = -sign[step + s] * (turn < 0 ? 1 : small) / (1 + small);
                }
                add_nodes<size()>(path_dscores + step, on_path, dim, step == 0, dvector);
            });
            std::fill(path_dscores + length, path_dscores + depth, 0.0f);
            if (!length) std::fill_n(dvector, dim, 0.0f);
            losses[example] = loss;
        }
    });
}

void path_gradients(int threads, const Paths &paths, const float *dscores, int64_t nodes, float *dnodes) {
    const NodeGradients gradients(paths, dscores, nodes, dnodes);
    share_work(threads, gradients.pieces(), [&](int64_t piece) { gradients.compute(piece); });
}

}  // namespace vocabench
