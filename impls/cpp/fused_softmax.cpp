// See `fused_softmax.h`.
//
// By blocks of tokens, of whose exponentials the gradients are made: so each logit is made once, three products in
// place of the four of a block of words, which does not know its sums yet. Within a block by tiles of words, whose
// vectors and gradients stay in the cache next to a core; exponentials are relative to a token's highest logit there.

#include "fused_softmax.h"

#include <cmath>
#include <memory>

#include "strips.h"
#include "threads.h"
#include "tiles.h"

namespace {

constexpr int64_t WORDS = 64;   // of a tile
constexpr int64_t MOST = 512;   // tokens whose logits of a tile stay in the cache next to a core

struct Softmax {
    int64_t vocab, dim;
    const float *words, *bias;
    float *dwords, *dbias;

    int64_t tiles() const { return (vocab + WORDS - 1) / WORDS; }
    int64_t size(int64_t tile) const { return std::min(WORDS, vocab - tile * WORDS); }
    Dense<const float> words_of(int64_t tile) const { return {words + tile * WORDS * dim, dim}; }
    Dense<float> dwords_of(int64_t tile) const { return {dwords + tile * WORDS * dim, dim}; }
};

// Some tokens and what is known of them: with zeros for those that there is room for.
struct Block {
    int64_t tokens = 0, places;             // places: in whole vectors
    Strips vectors;                         // (tokens, dim)
    Strips across;                          // (dim, places)
    std::unique_ptr<float[]> exponentials;  // (tiles, WORDS, places)
    std::vector<float> highest;             // (tiles, places) logits, then what exponentials are times to be P
    std::vector<float> sum;                 // (tiles, places) of exponentials
    std::vector<float> share;               // (places,)

    Block(int64_t most, const Softmax &softmax)
        : places((most + LANES - 1) / LANES * LANES), vectors(most, softmax.dim), across(softmax.dim, places),
          exponentials(new float[softmax.tiles() * WORDS * places]), highest(softmax.tiles() * places),
          sum(softmax.tiles() * places), share(places) {}

    void read(Dense<const float> from, const float *shares, int64_t count) {
        tokens = count;
        vectors.copy(from, tokens);
        across.copy_across(from, tokens);
        std::fill(std::copy_n(shares, tokens, share.begin()), share.end(), 0.0f);
    }
    Dense<float> of_tile(int64_t tile) { return {exponentials.get() + tile * WORDS * places, places}; }
};

void score(const Softmax &softmax, int64_t tile, Block &block) {
    const int64_t size = softmax.size(tile);
    const Dense<const float> words = softmax.words_of(tile);
    const Dense<float> own = block.of_tile(tile);
    const float *bias = softmax.bias + tile * WORDS;
    products(words, size, block.across, own);
    for (int64_t token = 0; token < block.places; token += LANES) {
        const Vector highest = add_biases({own.first + token, own.dim}, size, bias);
        Vector sum = {};
        for (int64_t w = 0; w < size; ++w) {
            const Vector exponential = exp(load(own[w] + token) - highest);
            store(own[w] + token, exponential);
            sum += exponential;
        }
        store(&block.highest[tile * block.places + token], highest);
        store(&block.sum[tile * block.places + token], sum);
    }
}

// log-sum-exp of some tokens, one a lane, into log_sum.
void normalise(int64_t tiles, int64_t token, Block &block, float *log_sum) {
    const auto highest_of = [&](int64_t tile) { return &block.highest[tile * block.places + token]; };
    Vector highest = load(highest_of(0));
    for (int64_t tile = 1; tile < tiles; ++tile) {
        const Vector of_tile = load(highest_of(tile));
        highest = of_tile > highest ? of_tile : highest;
    }
    double sums[LANES] = {};
    for (int64_t tile = 0; tile < tiles; ++tile) {
        const Vector share = exp(load(highest_of(tile)) - highest);
        const Vector sum = share * load(&block.sum[tile * block.places + token]);
        store(highest_of(tile), share);
        for (int lane = 0; lane < LANES; ++lane) sums[lane] += sum[lane];
    }
    Vector scale;
    for (int lane = 0; lane < LANES; ++lane) {
        scale[lane] = 1 / sums[lane];
        log_sum[lane] = highest[lane] + std::log(sums[lane]);
    }
    for (int64_t tile = 0; tile < tiles; ++tile) store(highest_of(tile), load(highest_of(tile)) * scale);
}

// What one thread has of its own.
struct Own {
    Strips words, dvectors;      // (WORDS, dim), (tokens, dim)
    std::vector<float> dlogits;  // (WORDS, places)
    Own(const Block &block, int64_t most, int64_t dim)
        : words(WORDS, dim), dvectors(most, dim), dlogits(WORDS * block.places) {}
};

// What a tile adds to the gradients. Of the first tokens of all, its own words' are set.
template <To TO>
void differentiate(const Softmax &softmax, int64_t tile, const int64_t *target, Block &block, Own &own) {
    const int64_t size = softmax.size(tile), places = block.places;
    const Dense<float> dlogits{own.dlogits.data(), places}, exponentials = block.of_tile(tile),
                       dwords = softmax.dwords_of(tile);
    for (int64_t token = 0; token < places; token += LANES) {
        const Vector scale = load(&block.highest[tile * places + token]) * load(&block.share[token]);
        for (int64_t w = 0; w < size; ++w) store(dlogits[w] + token, load(exponentials[w] + token) * scale);
    }
    for (int64_t token = 0; token < block.tokens; ++token) {
        const int64_t word = target[token] - tile * WORDS;
        if (0 <= word && word < WORDS) dlogits[word][token] -= block.share[token];
    }
    for (int64_t w = 0; w < size; ++w) {
        Vector sums = {};
        for (int64_t token = 0; token < places; token += LANES) sums += load(dlogits[w] + token);
        float &dbias = softmax.dbias[tile * WORDS + w];
        dbias = TO == To::ADD ? dbias + sum(sums) : sum(sums);
    }
    own.words.copy(softmax.words_of(tile), size);
    by_strips(softmax.dim / LANES, [&](int64_t v, auto some) {
        strip_sums<some(), TO>(dlogits.first, places, 1, size, block.tokens, block.vectors.at<some()>(v), 0,
                               Dense<float>{dwords.first + v * LANES, dwords.dim});
        strip_sums<some(), To::ADD>(dlogits.first, 1, places, block.tokens, size, own.words.at<some()>(v), 0,
                                    own.dvectors.at<some()>(v));
    });
}

}  // namespace

bool fused_softmax(int threads, const Examples &examples, int64_t vocab, int64_t most, const float *words,
                   const float *bias, float *total, float *dvectors, float *dwords, float *dbias) {
    const int64_t count = examples.count, dim = examples.dim;
    if (std::any_of(examples.target, examples.target + count, [=](int64_t word) { return word < 0 || word >= vocab; }))
        return false;
    if (count == 0) {
        std::fill_n(dwords, vocab * dim, 0.0f);
        std::fill_n(dbias, vocab, 0.0f);
        *total = 0;
        return true;
    }
    const Softmax softmax{vocab, dim, words, bias, dwords, dbias};
    most = std::min(most, MOST);
    const int64_t tiles = softmax.tiles(), blocks = (count + most - 1) / most, width = (count + blocks - 1) / blocks;
    Block block(width, softmax);
    std::vector<Own> of_threads;
    for (int thread = 0; thread < threads; ++thread) of_threads.emplace_back(block, width, dim);
    double sum = 0;
    for (int64_t start = 0; start < count; start += width) {
        const Dense<const float> vectors{examples.vectors + start * dim, dim};
        const int64_t *target = examples.target + start;
        block.read(vectors, examples.share + start, std::min(width, count - start));
        share_work(threads, tiles, [&](int64_t tile) { score(softmax, tile, block); });

        std::vector<float> log_sum(block.places);
        share_work(threads, block.places / LANES, [&](int64_t group) {
            normalise(tiles, group * LANES, block, &log_sum[group * LANES]);
        });
        for (int64_t token = 0; token < block.tokens; ++token) {
            float own;
            dots(vectors.from(token), 1, Dense<const float>{words + target[token] * dim, dim}, 1, &own, 1);
            sum += block.share[token] * (log_sum[token] - own - bias[target[token]]);
        }

        // Each thread the same tiles in every run, so that sums are the same to the last bit.
        share_work(threads, threads, [&](int64_t thread) {
            of_threads[thread].dvectors.clear();
            for (int64_t tile = tiles * thread / threads; tile < tiles * (thread + 1) / threads; ++tile) {
                if (start == 0)
                    differentiate<To::SET>(softmax, tile, target, block, of_threads[thread]);
                else
                    differentiate<To::ADD>(softmax, tile, target, block, of_threads[thread]);
            }
        });
        std::fill_n(dvectors + start * dim, block.tokens * dim, 0.0f);
        for (Own &own : of_threads)
            own.dvectors.each([&](Dense<float> strip, int64_t first, int64_t numbers) {
                for (int64_t token = 0; token < block.tokens; ++token)
                    for (int64_t d = 0; d < numbers; ++d) dvectors[(start + token) * dim + first + d] += strip[token][d];
            });
    }
    *total = sum;
    return true;
}
