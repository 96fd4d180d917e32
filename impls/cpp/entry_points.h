// What the interfaces to all frameworks call: each function checks all its arguments, then calls a kernel.
//
// Sizes are given next to the arrays, because an interface may not know the shapes.

#pragma once

#include <limits>
#include <type_traits>
#include <vector>

#include "checks.h"
#include "cluster_losses.h"
#include "fused_softmax.h"
#include "matrix_products.h"
#include "nucleus.h"
#include "tree_paths.h"
#include "tree_search.h"
#include "two_levels.h"
#include "weight_gradient.h"
#include "word_steps.h"

namespace vocabench {

static void require_threads(int threads) { require_between("threads", threads, 1, 0xffff); }

// The arrays of `Likeliest`.
template <class Id>
struct LikeliestArrays {
    int64_t k;
    Array<float> values;
    Array<Id> ids;
    Array<float> share;

    Likeliest<Id> checked(int64_t rows, int64_t words) const {
        require_between("k", k, 1, words);
        require_shape("values", values, {rows, k});
        require_shape("ids", ids, {rows, k});
        require_shape("share", share, {rows});
        return {k, values.data, ids.data, share.data};
    }
};

// The arrays of `Clusters`: start, size and end (count,), for words (places, dim).
struct ClusterArrays {
    Array<const int64_t> start, size;
    int64_t places, dim, slots;

    Clusters checked() const {
        const int64_t count = start.elements();
        require_between("clusters", count, 1, MOST_CLUSTERS);
        require_shape("start", start, {count});
        require_shape("size", size, {count});
        for (int64_t cluster = 0; cluster < count; ++cluster) {
            require_between("size", size.data[cluster], 0, std::min(slots, places));
            require_between("start", start.data[cluster], 0, places - size.data[cluster]);
        }
        return {count, start.data, size.data, nullptr, dim, slots};
    }
};

// The arrays of tokens that are sorted by cluster: vectors (rows, dim), row (tokens,) and end (clusters,).
//
// Id: int32_t or int64_t.
template <class Id>
struct TokenArrays {
    Array<const float> vectors;
    Array<const Id> row;
    Array<const int32_t> end;
    int64_t rows;

    int64_t count() const { return row.elements(); }
    void check(int64_t clusters, int64_t dim) const {
        require_shape("vectors", vectors, {rows, dim});
        require_shape("row", row, {count()});
        require_indices("row", row, rows);
        require_shape("end", end, {clusters});
        int64_t last = 0;
        for (int64_t cluster = 0; cluster < clusters; last = end.data[cluster++])
            require_between("end", end.data[cluster], last, count());
    }
};

// The arrays of `Paths`.
struct PathArrays {
    int64_t count, dim, depth;
    Array<const float> vectors;
    Array<const int32_t> index, sign, place;

    Paths checked() const {
        require_shape("vectors", vectors, {count, dim});
        require_shape("index", index, {count, depth});
        require_shape("sign", sign, {count, depth});
        require_shape("place", place, {count});
        return {count, dim, depth, vectors.data, index.data, sign.data, place.data};
    }
};

static void path_losses(int threads, const PathArrays &given, Array<const float> nodes, int64_t node_count,
                        Array<float> losses, Array<float> dscores, Array<float> dvectors) {
    require_threads(threads);
    const Paths paths = given.checked();
    require_shape("nodes", nodes, {node_count, paths.dim});
    require_shape("losses", losses, {paths.count});
    require_shape("dscores", dscores, {paths.count, paths.depth});
    require_shape("dvectors", dvectors, {paths.count, paths.dim});
    path_losses(threads, paths, nodes.data, node_count, losses.data, dscores.data, dvectors.data);
}

static void path_gradients(int threads, const PathArrays &given, Array<const float> dscores, int64_t node_count,
                           Array<float> dnodes) {
    require_threads(threads);
    const Paths paths = given.checked();
    require_shape("dscores", dscores, {paths.count, paths.depth});
    require_shape("dnodes", dnodes, {node_count, paths.dim});
    path_gradients(threads, paths, dscores.data, node_count, dnodes.data);
}

// The arrays of `Tree`. The kernels check the children that they read.
template <class Id>
struct TreeArrays {
    int64_t count, dim;
    Array<const float> nodes;
    Array<const Id> children;

    Tree<Id> checked() const {
        require_shape("nodes", nodes, {count, dim});
        require_shape("children", children, {count, 2});
        return {count, dim, nodes.data, children.data};
    }
};

template <class Id>
static void likeliest_leaves(int threads, const TreeArrays<Id> &given, Array<const float> vectors, int64_t rows,
                             const LikeliestArrays<Id> &likeliest) {
    require_threads(threads);
    const Tree<Id> tree = given.checked();
    require_shape("vectors", vectors, {rows, tree.dim});
    likeliest_leaves(threads, tree, vectors.data, rows, likeliest.checked(rows, tree.count + 1));
}

template <class Id>
static void leaves_of_beam(int threads, const TreeArrays<Id> &given, Array<const float> vectors, int64_t rows,
                           int64_t width, const LikeliestArrays<Id> &likeliest) {
    require_threads(threads);
    const Tree<Id> tree = given.checked();
    require_shape("vectors", vectors, {rows, tree.dim});
    const Likeliest<Id> out = likeliest.checked(rows, tree.count + 1);
    require_between("width", width, out.k, tree.count + 1);
    leaves_of_beam(threads, tree, vectors.data, rows, width, out);
}

// The arrays of `ClusteredWords`, besides those of its clusters. bias and ids_of are checked with the clusters.
template <class Id>
static void likeliest_words(int threads, int64_t rows, Array<const float> vectors, Array<const float> log_cluster,
                            const ClusteredWords<Id> &words, const LikeliestArrays<Id> &likeliest) {
    require_threads(threads);
    require_shape("vectors", vectors, {rows, words.clusters.dim});
    require_shape("log_cluster", log_cluster, {rows, words.clusters.count});
    likeliest_words(threads, {rows, vectors.data, log_cluster.data}, words, likeliest.checked(rows, words.count()));
}

// The arrays of `UpperLevel`.
struct UpperLevelArrays {
    int64_t dim, count;
    Array<const float> cluster_projection, word_projection;
    Projection projection;
    Array<const float> clusters, bias;

    UpperLevel checked() const {
        require_shape_if_any("cluster_projection", cluster_projection, {dim, dim});
        require_shape_if_any("word_projection", word_projection, {dim, dim});
        require_shape("clusters", clusters, {count, dim});
        require_shape_if_any("cluster_bias", bias, {count});
        return {dim,           count,         cluster_projection.or_null(), word_projection.or_null(), projection,
                clusters.data, bias.or_null()};
    }
};

template <class Id>
static void likeliest_of_hidden(int threads, const UpperLevelArrays &given, Array<const float> hidden, int64_t rows,
                                const ClusteredWords<Id> &words, const LikeliestArrays<Id> &likeliest) {
    require_threads(threads);
    const UpperLevel level = given.checked();
    require_equal("clusters", level.count, words.clusters.count);
    require_equal("dim", level.dim, words.clusters.dim);
    require_shape("hidden", hidden, {rows, level.dim});
    likeliest_of_hidden(threads, level, hidden.data, rows, words, likeliest.checked(rows, words.count()));
}

// The arrays of `fused_softmax`. `target` is checked by the kernel.
//
// Number: float or Bfloat16.
template <class Number>
struct FusedArrays {
    int64_t count, vocab, dim, most;
    Array<const float> vectors;
    Array<const Number> words;
    Array<const float> bias, share;
    Array<float> total, dvectors;
    Array<Number> dwords;
    Array<float> dbias;

    void check() const {
        require_at_least("most", most, 1);
        if (dim % 16) throw BadArgument("dim", std::to_string(dim), "a multiple of 16");
        require_shape("vectors", vectors, {count, dim});
        require_shape("words", words, {vocab, dim});
        require_shape("bias", bias, {vocab});
        require_shape("share", share, {count});
        require_shape("total", total, {});
        require_shape("dvectors", dvectors, {count, dim});
        require_shape("dwords", dwords, {vocab, dim});
        require_shape("dbias", dbias, {vocab});
    }

    FusedWords fused_words() const {
        if constexpr (std::is_same_v<Number, float>)
            return {words.data, dwords.data, nullptr, nullptr};
        else
            return {nullptr, nullptr, words.data, dwords.data};
    }
};

template <class Number, class Id>
static bool fused_softmax(int threads, const FusedArrays<Number> &given, Array<const Id> target, bool by_unit) {
    require_threads(threads);
    given.check();
    require_shape("target", target, {given.count});
    const std::vector<int64_t> targets(target.data, target.data + given.count);
    const Examples examples{given.count, given.dim, given.vectors.data, targets.data(), given.share.data};
    return fused_softmax(threads, examples, given.vocab, given.most, by_unit, given.fused_words(), given.bias.data,
                         given.total.data, given.dvectors.data, given.dbias.data);
}

// Refuses a factor that reaches beyond its `bytes` of memory, or whose elements are contiguous in no direction.
static void require_factor(const char *name, const Factor &factor, int64_t bytes) {
    const auto [first, count, depth, by_row, by_element] = factor;
    require_at_least(name, std::min(count, depth), 0);
    if (!count || !depth) return;  // nothing is read, whatever the strides
    if (std::min(by_row, by_element) < 0 || (by_row != 1 && by_element != 1))
        throw BadArgument(name, "strides " + std::to_string(by_row) + " and " + std::to_string(by_element),
                          "one of 1, none negative");
    const int64_t floats = bytes / static_cast<int64_t>(sizeof(float));
    if ((count - 1) * by_row + (depth - 1) * by_element >= floats)
        throw BadArgument(name, std::to_string(bytes) + " bytes",
                          "as many as " + std::to_string(count) + " rows of " + std::to_string(depth) + " reach");
}

// Returns the rows or the columns of a matrix.
static Factor factor(const char *name, const Array<const float> &matrix, bool by_columns) {
    const auto [rows, columns, none] = matrix.sizes;
    require_shape(name, matrix, {rows, columns});
    return Factor::of(matrix.data, rows, columns, by_columns);
}

static void matrix_product(int threads, const Factor &left, const Factor &right, Array<float> out) {
    require_threads(threads);
    require_equal("depth", right.depth, left.depth);
    require_shape("product", out, {left.count, right.count});
    matrix_product(threads, left, right, out.data);
}

static void weight_gradient(int threads, Array<const float> dscores, Array<const float> vectors, int64_t tokens,
                            int64_t count, int64_t dim, Array<float> dwords) {
    require_threads(threads);
    require_shape("dscores", dscores, {tokens, count});
    require_shape("vectors", vectors, {tokens, dim});
    require_shape("dwords", dwords, {count, dim});
    weight_gradient(threads, dscores.data, vectors.data, tokens, count, dim, dwords.data);
}

template <class Id>
static void nucleus_words(int threads, int64_t rows, int64_t words, Array<const float> log_probs,
                          Array<const float> uniforms, float temperature, float top_p, Array<Id> drawn) {
    require_threads(threads);
    require_shape("log_probs", log_probs, {rows, words});
    require_shape("uniforms", uniforms, {rows});
    require_shape("drawn", drawn, {rows});
    require_within("temperature", temperature, std::numeric_limits<float>::max());
    require_within("top_p", top_p, 1);
    nucleus_words(threads, rows, words, log_probs.data, uniforms.data, temperature, top_p, drawn.data);
}

// The arrays of `WordExamples`, the first and the last rate, the vectors that the steps change with the sums of their
// squared gradients (without elements if there are none), and the mean loss.
struct WordStepArrays {
    int64_t count, width, lists, depth, dim, input_count, output_count;
    Array<const int32_t> inputs, list, row, sign;
    Array<const float> rates;
    Array<float> input_vectors, output_vectors, input_squares, output_squares, loss;

    WordExamples checked() const {
        require_shape("inputs", inputs, {count, width});
        require_shape("list", list, {count});
        require_shape("row", row, {lists, depth});
        require_shape("sign", sign, {lists, depth});
        require_shape("rates", rates, {2});
        require_shape("input_vectors", input_vectors, {input_count, dim});
        require_shape("output_vectors", output_vectors, {output_count, dim});
        if (input_squares.bytes || output_squares.bytes) {
            require_shape("input_squares", input_squares, {input_count});
            require_shape("output_squares", output_squares, {output_count});
        }
        require_shape("loss", loss, {});
        for (int64_t example = 0; example < count; ++example) {  // of the lists only those that are used
            const int32_t number = list.data[example];
            if (number < 0) continue;
            require_between("list", number, 0, lists - 1);
            if (!example || number != list.data[example - 1])
                for (int64_t place = number * depth; place < (number + 1) * depth; ++place)
                    require_between("row", row.data[place], 0, output_count - 1);
            const int32_t *first = inputs.data + example * width;
            const int32_t highest = width ? *std::max_element(first, first + width) : -1;
            require_between("highest input of an example", highest, 0, input_count - 1);
        }
        return {count, width, lists, depth, dim, inputs.data, list.data, row.data, sign.data};
    }
};

static void word_steps(int threads, const WordStepArrays &given) {
    require_threads(threads);
    const WordExamples examples = given.checked();
    const double total = word_steps(threads, examples, given.rates.data[0], given.rates.data[1],
                                    {given.input_vectors.data, given.input_squares.or_null()},
                                    {given.output_vectors.data, given.output_squares.or_null()});
    const auto left_out = std::count_if(examples.list, examples.list + given.count, [](int32_t id) { return id < 0; });
    *given.loss.data = static_cast<float>(total / static_cast<double>(given.count - left_out));
}

}  // namespace vocabench
