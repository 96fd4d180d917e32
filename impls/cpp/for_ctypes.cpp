// The kernels as C functions of a number of threads and a struct of arguments, all of 64 bits: pointers, each with the
// bytes behind it, then sizes. Each function returns one of the status codes below.

#include <exception>
#include <new>
#include <string>
#include <type_traits>

#include "entry_points.h"

namespace vocabench {

namespace {

constexpr int DONE = 1, REFUSED = 0, NO_MEMORY = -1, FAILED = -2, BAD_ARGUMENT = -3;

thread_local std::string refusal;

// Runs a kernel with a struct of so many bytes and returns its status. A kernel refuses its targets by returning false.
template <class Arguments, class Call>
int attempt(const Arguments &, int bytes, Call call) {
    try {
        require_equal("bytes of arguments", bytes, sizeof(Arguments));
        if constexpr (std::is_void_v<decltype(call())>)
            call();
        else if (!call())
            return REFUSED;
        return DONE;
    } catch (const BadArgument &error) {
        refusal = error.what();
        return BAD_ARGUMENT;
    } catch (const std::bad_alloc &) {
        return NO_MEMORY;
    } catch (const std::exception &) {
        return FAILED;
    }
}

using Floats = Memory<const float>;
using FloatsOut = Memory<float>;
using Shorts = Memory<const int32_t>;
using Longs = Memory<const int64_t>;
using LongsOut = Memory<int64_t>;

struct TokenMemory {
    Floats vectors;
    Longs row;
    Shorts end;
    int64_t rows;

    TokenArrays<int64_t> checked(const Clusters &clusters) const {
        const TokenArrays<int64_t> tokens{vectors, row, end, rows};
        tokens.check(clusters.count, clusters.dim);
        return tokens;
    }
};

struct ClusterMemory {
    Longs start, size;
    int64_t places, dim, slots;

    Clusters checked() const { return ClusterArrays{start, size, places, dim, slots}.checked(); }
    Clusters checked(const TokenMemory &tokens) const {
        Clusters clusters = checked();
        clusters.end = tokens.checked(clusters).end.data;
        return clusters;
    }
};

struct WordMemory {
    ClusterMemory clusters;
    Floats words, bias;

    void check() const {
        require_shape("words", Array(words), {clusters.places, clusters.dim});
        require_shape_if_any("bias", Array(bias), {clusters.places});
    }
    const float *bias_or_null() const { return Array(bias).or_null(); }
    ClusteredWords<int64_t> checked(const Longs &ids) const {
        const Clusters given = clusters.checked();
        check();
        require_shape("ids", Array(ids), {given.count, given.slots});
        return {words.data, bias_or_null(), ids.data, given};
    }
};

struct LikeliestMemory {
    FloatsOut values;
    LongsOut ids;
    FloatsOut share;
    int64_t k;

    LikeliestArrays<int64_t> arrays() const { return {k, values, ids, share}; }
};

struct ScoresArguments {
    TokenMemory tokens;
    WordMemory words;
    FloatsOut scores;
};

struct LossesArguments {
    TokenMemory tokens;
    WordMemory words;
    Shorts slot;
    FloatsOut losses, excess, dvectors;
};

struct GradientsArguments {
    TokenMemory tokens;
    ClusterMemory clusters;
    Floats excess, weight;
    FloatsOut dwords, dbias;
};

struct LikeliestArguments {
    Floats vectors, log_cluster;
    WordMemory words;
    Longs ids_of;
    LikeliestMemory likeliest;
    int64_t rows;
};

struct HiddenArguments {
    Floats hidden, cluster_projection, word_projection, cluster_weight, cluster_bias;
    WordMemory words;
    Longs ids_of;
    LikeliestMemory likeliest;
    int64_t rows;
};

template <class Number>
struct FusedArguments {
    Floats vectors;
    Memory<const Number> words;
    Floats bias;
    Longs target;
    Floats share;
    FloatsOut total, dvectors;
    Memory<Number> dwords;
    FloatsOut dbias;
    int64_t count, vocab, dim, most, by_unit;

    bool run(int threads) const {
        const FusedArrays<Number> arrays{count, vocab, dim,   most,     vectors, words,
                                         bias,  share, total, dvectors, dwords,  dbias};
        return fused_softmax<Number, int64_t>(threads, arrays, target, by_unit);
    }
};

struct TreeArguments {
    Floats vectors, nodes;
    Longs children;
    LikeliestMemory likeliest;
    int64_t rows, count, dim, width;  // width: 0 for an exact search

    TreeArrays<int64_t> tree() const { return {count, dim, nodes, children}; }
};

struct FactorMemory {
    Floats memory;
    int64_t count, depth, row_stride, element_stride;

    Factor checked(const char *name) const {
        const Factor factor{memory.data, count, depth, row_stride, element_stride};
        require_factor(name, factor, memory.bytes);
        return factor;
    }
};

struct ProductArguments {
    FactorMemory left, right;
    FloatsOut out;
};

struct PathArguments {
    Floats vectors;
    Shorts index, sign, place;
    int64_t count, dim, depth;

    PathArrays arrays() const { return {count, dim, depth, vectors, index, sign, place}; }
};

struct PathLossesArguments {
    PathArguments paths;
    Floats nodes;
    FloatsOut losses, dscores, dvectors;
    int64_t node_count;
};

struct PathGradientsArguments {
    PathArguments paths;
    Floats dscores;
    FloatsOut dnodes;
    int64_t node_count;
};

struct WeightGradientArguments {
    Floats dscores, vectors;
    FloatsOut dwords;
    int64_t tokens, count, dim;
};

struct NucleusArguments {
    Floats log_probs, uniforms;
    LongsOut drawn;
    int64_t rows, words;
};

struct WordStepArguments {
    Shorts inputs, list, row, sign;
    Floats rates;
    FloatsOut input_vectors, output_vectors, input_squares, output_squares, loss;
    int64_t count, width, lists, depth, dim, input_count, output_count;
};

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// Returns the message about the last argument that a kernel refused in this thread.
const char *last_refusal() { return refusal.c_str(); }

int cluster_scores_of_ctypes(int threads, const ScoresArguments &given, int bytes) {
    return attempt(given, bytes, [&] {
        require_threads(threads);
        const auto &[tokens, words, scores] = given;
        const Clusters clusters = words.clusters.checked(tokens);
        words.check();
        require_shape("scores", Array(scores), {Array(tokens.row).elements(), clusters.slots});
        cluster_scores(threads, tokens.vectors.data, tokens.row.data, words.words.data, clusters, words.bias_or_null(),
                       scores.data);
    });
}

int cluster_losses_of_ctypes(int threads, const LossesArguments &given, int bytes) {
    return attempt(given, bytes, [&] {
        require_threads(threads);
        const auto &[tokens, words, slot, losses, excess, dvectors] = given;
        const Clusters clusters = words.clusters.checked(tokens);
        const int64_t count = Array(tokens.row).elements();
        words.check();
        require_shape("slot", Array(slot), {count});
        require_shape("losses", Array(losses), {count});
        if (excess.data || dvectors.data) {
            require_shape("excess", Array(excess), {count, clusters.slots});
            require_shape("dvectors", Array(dvectors), {tokens.rows, clusters.dim});
        }
        cluster_losses(threads, tokens.vectors.data, tokens.row.data, slot.data, words.words.data, clusters,
                       words.bias_or_null(), losses.data, excess.data, dvectors.data);
    });
}

int cluster_gradients_of_ctypes(int threads, const GradientsArguments &given, int bytes) {
    return attempt(given, bytes, [&] {
        require_threads(threads);
        const auto &[tokens, words, excess, weight, dwords, dbias] = given;
        const Clusters clusters = words.checked(tokens);
        const int64_t count = Array(tokens.row).elements();
        require_shape("excess", Array(excess), {count, clusters.slots});
        require_shape("weight", Array(weight), {count});
        require_shape("dwords", Array(dwords), {words.places, clusters.dim});
        require_shape_if_any("dbias", Array(dbias), {words.places});
        cluster_gradients(threads, tokens.vectors.data, tokens.row.data, clusters, excess.data, weight.data,
                          dwords.data, Array(dbias).or_null());
    });
}

int likeliest_words_of_ctypes(int threads, const LikeliestArguments &given, int bytes) {
    return attempt(given, bytes, [&] {
        likeliest_words<int64_t>(threads, given.rows, given.vectors, given.log_cluster,
                                 given.words.checked(given.ids_of), given.likeliest.arrays());
    });
}

int likeliest_of_hidden_of_ctypes(int threads, const HiddenArguments &given, int bytes, float kept, float share,
                                  float least) {
    return attempt(given, bytes, [&] {
        const ClusteredWords<int64_t> words = given.words.checked(given.ids_of);
        const UpperLevelArrays level{words.clusters.dim,    words.clusters.count, given.cluster_projection,
                                     given.word_projection, {kept, share, least}, given.cluster_weight,
                                     given.cluster_bias};
        likeliest_of_hidden<int64_t>(threads, level, given.hidden, given.rows, words, given.likeliest.arrays());
    });
}

int fused_softmax_of_ctypes(int threads, const FusedArguments<float> &given, int bytes) {
    return attempt(given, bytes, [&] { return given.run(threads); });
}

int fused_bfloat16_of_ctypes(int threads, const FusedArguments<Bfloat16> &given, int bytes) {
    return attempt(given, bytes, [&] { return given.run(threads); });
}

int likeliest_leaves_of_ctypes(int threads, const TreeArguments &given, int bytes) {
    return attempt(given, bytes, [&] {
        const auto likeliest = given.likeliest.arrays();
        if (given.width)
            leaves_of_beam<int64_t>(threads, given.tree(), given.vectors, given.rows, given.width, likeliest);
        else
            likeliest_leaves<int64_t>(threads, given.tree(), given.vectors, given.rows, likeliest);
    });
}

int matrix_product_of_ctypes(int threads, const ProductArguments &given, int bytes) {
    return attempt(given, bytes, [&] {
        matrix_product(threads, given.left.checked("left"), given.right.checked("right"), given.out);
    });
}

int path_losses_of_ctypes(int threads, const PathLossesArguments &given, int bytes) {
    return attempt(given, bytes, [&] {
        path_losses(threads, given.paths.arrays(), given.nodes, given.node_count, given.losses, given.dscores,
                    given.dvectors);
    });
}

int path_gradients_of_ctypes(int threads, const PathGradientsArguments &given, int bytes) {
    return attempt(given, bytes, [&] {
        path_gradients(threads, given.paths.arrays(), given.dscores, given.node_count, given.dnodes);
    });
}

int weight_gradient_of_ctypes(int threads, const WeightGradientArguments &given, int bytes) {
    return attempt(given, bytes, [&] {
        weight_gradient(threads, given.dscores, given.vectors, given.tokens, given.count, given.dim, given.dwords);
    });
}

int nucleus_words_of_ctypes(int threads, const NucleusArguments &given, int bytes, float temperature, float top_p) {
    return attempt(given, bytes, [&] {
        nucleus_words<int64_t>(threads, given.rows, given.words, given.log_probs, given.uniforms, temperature, top_p,
                               given.drawn);
    });
}

int word_steps_of_ctypes(int threads, const WordStepArguments &given, int bytes) {
    return attempt(given, bytes, [&] {
        const WordStepArrays arrays{
            given.count,          given.width,        given.lists,         given.depth,          given.dim,
            given.input_count,    given.output_count, given.inputs,        given.list,           given.row,
            given.sign,           given.rates,        given.input_vectors, given.output_vectors, given.input_squares,
            given.output_squares, given.loss};
        word_steps(threads, arrays);
    });
}
}  // extern "C"
#pragma GCC visibility pop

}  // namespace vocabench
