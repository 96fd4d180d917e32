// See `tree_paths.h`.
//
// Sorted by their leaves, paths share nodes with their neighbours: a node is read while it is in a near cache, and the
// examples whose paths lead through it are next to each other, so that its gradient is one sum of neighbours.

#include "tree_paths.h"

#include <limits>
#include <numeric>

#include "log_sigmoid.h"
#include "products_with.h"
#include "sums.h"
#include "threads.h"

namespace {

constexpr int AT_ONCE = 4;        // nodes that are read together
constexpr int64_t EXAMPLES = 16;  // whose paths are one piece of work
constexpr int64_t ROWS = 64;      // of a gradient that are made zero as one piece of work

// Examples from the leftmost leaf to the rightmost, and then those whose paths are empty, which would part the others.
std::vector<int64_t> sorted(const Paths &paths) {
    std::vector<int64_t> order(paths.count);
    std::iota(order.begin(), order.end(), 0);
    const auto place = [&](int64_t example) {
        return paths.sign[example * paths.depth] ? paths.place[example] : std::numeric_limits<int32_t>::max();
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t one, int64_t other) { return place(one) < place(other); });
    return order;
}

// dvector += weights (S,) times nodes, or = those.
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

// Sorted examples that share a node, and at which step of their paths.
struct Shared {
    int32_t node;
    int64_t step, first, count;
};

std::vector<Shared> shared_nodes(const Paths &paths, const std::vector<int64_t> &order) {
    std::vector<Shared> found;
    std::vector<size_t> open;  // those of the path before, from the root
    for (int64_t example = 0; example < paths.count; ++example) {
        const int32_t *index = paths.index + order[example] * paths.depth;
        const int32_t *sign = paths.sign + order[example] * paths.depth;
        const int64_t length = std::find(sign, sign + paths.depth, 0) - sign;
        const int64_t shared = std::min<int64_t>(length, open.size());
        int64_t step = 0;
        for (; step < shared && found[open[step]].node == index[step]; ++step) ++found[open[step]].count;
        open.resize(step);
        for (; step < length; ++step) {
            open.push_back(found.size());
            found.push_back({index[step], step, example, 1});
        }
    }
    return found;
}

}  // namespace

void path_losses(int threads, const Paths &paths, const float *nodes, float *losses, float *dscores, float *dvectors) {
    const std::vector<int64_t> order = sorted(paths);
    const int64_t dim = paths.dim, depth = paths.depth;
    share_work(threads, (paths.count + EXAMPLES - 1) / EXAMPLES, [&](int64_t piece) {
        for (int64_t number = piece * EXAMPLES; number < std::min((piece + 1) * EXAMPLES, paths.count); ++number) {
            const int64_t example = order[number];
            const int32_t *index = paths.index + example * depth, *sign = paths.sign + example * depth;
            const float *vector = paths.vectors + example * dim;
            float *own = dscores + example * depth, *dvector = dvectors + example * dim;
            const int64_t length = std::find(sign, sign + depth, 0) - sign;
            float loss = 0;
            by_pieces<AT_ONCE>(length, [&](int64_t step, auto some) {
                const float *on_path[AT_ONCE];
                float scores[AT_ONCE];
                for (int s = 0; s < some(); ++s) on_path[s] = nodes + index[step + s] * dim;
                products_with<some()>(vector, on_path, dim, scores);
                for (int s = 0; s < some(); ++s) {
                    const float turn = sign[step + s] * scores[s], small = std::exp(-std::abs(turn));
                    loss += std::max(-turn, 0.0f) + std::log1p(small);
                    // d/dx of -log sigma(s x) is -s sigma(-s x).
                    own[step + s] = -sign[step + s] * (turn < 0 ? 1 : small) / (1 + small);
                }
                add_nodes<some()>(own + step, on_path, dim, step == 0, dvector);
            });
            std::fill(own + length, own + depth, 0.0f);
            if (!length) std::fill_n(dvector, dim, 0.0f);
            losses[example] = loss;
        }
    });
}

void path_gradients(int threads, const Paths &paths, const float *dscores, int64_t nodes, float *dnodes) {
    const std::vector<int64_t> order = sorted(paths);
    const std::vector<Shared> shared = shared_nodes(paths, order);
    const int64_t dim = paths.dim, depth = paths.depth;
    std::vector<float> weights(paths.count * depth);
    for (int64_t example = 0; example < paths.count; ++example)
        std::copy_n(dscores + order[example] * depth, depth, weights.data() + example * depth);
    std::vector<char> is_on_path(nodes, 0);
    for (const Shared &each : shared) is_on_path[each.node] = 1;
    const bool aligned = (reinterpret_cast<uintptr_t>(dnodes) | dim * sizeof(float)) % sizeof(Vector) == 0;

    const Picked<const float> vectors{paths.vectors, dim, order.data()};
    const auto weights_of = [&](const Shared &each) { return weights.data() + each.first * depth + each.step; };
    // The sums of all nodes, of some vectors' worth of numbers from d on, of which a copy stays in a near cache.
    const auto strip_of_sums = [&](int64_t d, auto some) {
        constexpr int64_t WIDTH = some() * LANES;
        std::vector<float> strip(paths.count * WIDTH);
        for (int64_t example = 0; example < paths.count; ++example)
            std::copy_n(vectors[example] + d, WIDTH, strip.data() + example * WIDTH);
        with_constant(aligned, [&](auto is_aligned) {
            constexpr To TO = is_aligned() ? To::MEMORY : To::SET;
            for (const Shared &each : shared) {
                const Dense<const float> own{strip.data() + each.first * WIDTH, WIDTH};
                const Dense<float> out{dnodes + each.node * dim + d, dim};
                sum_tile<1, some(), TO>(weights_of(each), 0, depth, each.count, own, 0, out);
            }
        });
    };
    const auto rest = [&] {
        for (const Shared &each : shared)
            rest_of_sums<To::SET>(weights_of(each), 0, depth, 1, each.count, vectors.from(each.first),
                                  dim / LANES * LANES, Dense<float>{dnodes + each.node * dim, dim});
    };
    const auto zeros = [&](int64_t piece) {
        const auto zero = [&](int64_t node) {
            float *row = dnodes + node * dim;
            if (aligned)
                for (int64_t d = 0; d < dim; d += LANES) store_past_caches(row + d, Vector{});
            else
                std::fill_n(row, dim, 0.0f);
        };
        for (int64_t node = piece * ROWS; node < std::min((piece + 1) * ROWS, nodes); ++node)
            if (!is_on_path[node]) zero(node);
    };
    const int64_t whole = dim / LANES, strips = (whole + SUM_VECTORS - 1) / SUM_VECTORS;
    share_work(threads, strips + 1 + (nodes + ROWS - 1) / ROWS, [&](int64_t number) {
        const int64_t first = number * SUM_VECTORS;
        if (number < strips)
            with_constant<SUM_VECTORS>(std::min<int64_t>(SUM_VECTORS, whole - first),
                                       [&](auto some) { strip_of_sums(first * LANES, some); });
        else if (number == strips)
            rest();
        else
            zeros(number - strips - 1);
    });
}
