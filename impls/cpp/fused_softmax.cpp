// See `fused_softmax.h`.
//
// The tokens are processed in blocks whose exponentials are kept for the gradients. Each logit is computed once, and
// three matrix products are needed. With blocks of words, whose sums are not known in time, four would be needed.
// Within a block the words are processed in tiles whose vectors and gradients stay in the L2 cache. Exponentials are
// relative to the highest logit of a token within the tile.

#include "fused_softmax.h"

#include <cmath>
#include <memory>

#include "matrix_unit.h"
#include "strips.h"
#include "threads.h"
#include "tiles.h"

namespace vocabench {

namespace {

constexpr int64_t WORDS = 64;  // words per tile

struct Softmax {
    int64_t vocab, dim;
    FusedWords words;
    const float *bias;
    float *dbias;
    float *sums;  // (vocab, dim) gradients of words in bfloat16, or null if there is one block of tokens

    int64_t tiles() const { return (vocab + WORDS - 1) / WORDS; }
    int64_t size(int64_t tile) const { return std::min(WORDS, vocab - tile * WORDS); }

    // The words from `first` on, widened to `buffer` if they are bfloat16.
    Dense<const float> words_from(int64_t first, int64_t count, float *buffer) const {
        if (words.single) return {words.single + first * dim, dim};
        widen(words.half + first * dim, count * dim, buffer);
        return {buffer, dim};
    }
    // Where the gradients of a tile are summed; `buffer` holds those of a single block.
    Dense<float> dwords_of(int64_t tile, float *buffer) const {
        float *all = words.single ? words.dsingle : sums;
        return {all ? all + tile * WORDS * dim : buffer, dim};
    }
    // Rounds the gradients of a tile if the words are bfloat16.
    void round(int64_t tile, float *buffer) const {
        if (words.half) narrow(dwords_of(tile, buffer).first, size(tile) * dim, words.dhalf + tile * WORDS * dim);
    }
};

// Products on the vector units.
struct ByVectors {
    static constexpr int64_t MOST = 512;  // tokens whose logits for a tile stay in the L2 cache

    struct Tokens {
        Strips vectors;  // (tokens, dim)
        Strips across;   // (dim, places)
        Tokens(int64_t most, int64_t places, int64_t dim) : vectors(most, dim), across(dim, places) {}

        void read(Dense<const float> from, int64_t count) {
            vectors.copy(from, count);
            across.copy_across(from, count);
        }
    };

    // Working memory of a thread.
    class Memory {
      public:
        Memory(int64_t most, int64_t, int64_t dim) : words_(WORDS, dim), dvectors_(most, dim) {}

        void clear() { dvectors_.clear(); }
        void score(Dense<const float> words, int64_t size, const Tokens &tokens, Dense<float> scores) {
            products(words, size, tokens.across, scores);
        }
        template <To TO>
        void differentiate(Dense<const float> dlogits, Dense<const float> words, int64_t size, const Tokens &tokens,
                           int64_t count, Dense<float> dwords) {
            words_.copy(words, size);
            by_strips(words.dim / LANES, [&](int64_t v, auto vectors) {
                strip_sums<vectors(), TO>(dlogits.first, dlogits.dim, 1, size, count, tokens.vectors.at<vectors()>(v),
                                          0, Dense<float>{dwords.first + v * LANES, dwords.dim});
                strip_sums<vectors(), To::ADD>(dlogits.first, 1, dlogits.dim, count, size, words_.at<vectors()>(v), 0,
                                               dvectors_.at<vectors()>(v));
            });
        }
        void add_to(Dense<float> dvectors, int64_t count) {
            dvectors_.each([&](Dense<float> strip, int64_t first, int64_t columns) {
                for (int64_t token = 0; token < count; ++token)
                    for (int64_t d = 0; d < columns; ++d) dvectors[token][first + d] += strip[token][d];
            });
        }

      private:
        Strips words_, dvectors_;  // (WORDS, dim), (tokens, dim)
    };
};

// Products on the matrix unit.
struct ByUnit {
    static constexpr int64_t MOST = 256;  // tokens whose parts stay in the L2 cache

    struct Tokens {
        Parts vectors, across;  // right factors for sums over dimensions, and over tokens
        Tokens(int64_t, int64_t places, int64_t dim) : vectors(places, dim), across(dim, places) {}

        void read(Dense<const float> from, int64_t count) {
            vectors.read(Factor::of(from.first, count, from.dim, false), Side::RIGHT);
            across.read(Factor::of(from.first, count, from.dim, true), Side::RIGHT);
        }
    };

    class Memory {
      public:
        Memory(int64_t, int64_t places, int64_t dim)
            : places_(places),
              dim_(dim),
              words_(WORDS, dim),
              across_(dim, WORDS),
              dlogits_(WORDS, places),
              dlogits_across_(places, WORDS),
              dvectors_(new float[places * dim]) {}

        void clear() { std::fill_n(dvectors_.get(), places_ * dim_, 0.0f); }
        void score(Dense<const float> words, int64_t size, const Tokens &tokens, Dense<float> scores) {
            const Unit unit;
            words_.read(Factor::of(words.first, size, dim_, false), Side::LEFT);
            multiply_all(words_, size, tokens.vectors, places_, false, scores.first, scores.dim);
        }
        template <To TO>
        void differentiate(Dense<const float> dlogits, Dense<const float> words, int64_t size, const Tokens &tokens,
                           int64_t, Dense<float> dwords) {
            const Unit unit;
            dlogits_.read(Factor::of(dlogits.first, size, places_, false), Side::LEFT);
            multiply_all(dlogits_, size, tokens.across, dim_, TO == To::ADD, dwords.first, dwords.dim);
            dlogits_across_.read(Factor::of(dlogits.first, size, places_, true), Side::LEFT);
            across_.read(Factor::of(words.first, size, dim_, true), Side::RIGHT);
            multiply_all(dlogits_across_, places_, across_, dim_, true, dvectors_.get(), dim_);
        }
        void add_to(Dense<float> dvectors, int64_t count) {
            for (int64_t index = 0; index < count * dim_; ++index) dvectors.first[index] += dvectors_[index];
        }

      private:
        int64_t places_, dim_;
        Parts words_, across_, dlogits_, dlogits_across_;
        std::unique_ptr<float[]> dvectors_;  // (places, dim)
    };
};

// A block of tokens and their values, with zeros for tokens that would fit but are not there.
template <class Kind>
struct Block {
    int64_t tokens = 0, places;  // places: tokens that fit, a multiple of LANES
    typename Kind::Tokens factors;
    std::unique_ptr<float[]> exponentials;  // (tiles, WORDS, places)
    std::vector<float> highest;             // (tiles, places) logits, then factors from exponentials to P
    std::vector<float> sum;                 // (tiles, places) sums of exponentials
    std::vector<float> share;               // (places,)

    Block(int64_t most, const Softmax &softmax)
        : places((most + LANES - 1) / LANES * LANES),
          factors(most, places, softmax.dim),
          exponentials(new float[softmax.tiles() * WORDS * places]),
          highest(softmax.tiles() * places),
          sum(softmax.tiles() * places),
          share(places) {}

    void read(Dense<const float> from, const float *shares, int64_t count) {
        tokens = count;
        factors.read(from, tokens);
        std::fill(std::copy_n(shares, tokens, share.begin()), share.end(), 0.0f);
    }
    Dense<float> tile_exponentials(int64_t tile) { return {exponentials.get() + tile * WORDS * places, places}; }
};

// State of a thread.
template <class Kind>
struct Thread {
    typename Kind::Memory memory;
    std::vector<float> dlogits;        // (WORDS, places)
    std::vector<float> words, dwords;  // (WORDS, dim), for words in bfloat16
    Thread(const Block<Kind> &block, int64_t most, const Softmax &softmax)
        : memory(most, block.places, softmax.dim),
          dlogits(WORDS * block.places),
          words(softmax.words.half ? WORDS * softmax.dim : 0),
          dwords(words.size()) {}

    Dense<const float> words_of(const Softmax &softmax, int64_t tile) {
        return softmax.words_from(tile * WORDS, softmax.size(tile), words.data());
    }
};

// Computes the exponentials of a tile, their sums, and the highest logits.
template <class Kind>
void score(const Softmax &softmax, int64_t tile, Block<Kind> &block, Thread<Kind> &thread) {
    const int64_t size = softmax.size(tile);
    const Dense<float> scores = block.tile_exponentials(tile);
    const float *bias = softmax.bias + tile * WORDS;
    thread.memory.score(thread.words_of(softmax, tile), size, block.factors, scores);
    for (int64_t token = 0; token < block.places; token += LANES) {
        const Vector highest = add_biases({scores.first + token, scores.dim}, size, bias);
        Vector sum = {};
        for (int64_t w = 0; w < size; ++w) {
            const Vector exponential = exp(load(scores[w] + token) - highest);
            store(scores[w] + token, exponential);
            sum += exponential;
        }
        store(&block.highest[tile * block.places + token], highest);
        store(&block.sum[tile * block.places + token], sum);
    }
}

// Writes the log-sum-exp of LANES tokens to log_sum.
template <class Kind>
void normalize(int64_t tiles, int64_t token, Block<Kind> &block, float *log_sum) {
    const auto highest_of = [&](int64_t tile) { return &block.highest[tile * block.places + token]; };
    Vector highest = load(highest_of(0));
    for (int64_t tile = 1; tile < tiles; ++tile) {
        const Vector tile_highest = load(highest_of(tile));
        highest = tile_highest > highest ? tile_highest : highest;
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

// Adds the contribution of a tile to the gradients. The first block of tokens sets the gradients of the words instead.
template <To TO, class Kind>
void differentiate(const Softmax &softmax, int64_t tile, const int64_t *target, Block<Kind> &block,
                   Thread<Kind> &thread) {
    const int64_t size = softmax.size(tile), places = block.places;
    const Dense<float> dlogits{thread.dlogits.data(), places}, exponentials = block.tile_exponentials(tile);
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
    thread.memory.template differentiate<TO>({dlogits.first, dlogits.dim}, thread.words_of(softmax, tile), size,
                                             block.factors, block.tokens,
                                             softmax.dwords_of(tile, thread.dwords.data()));
}

template <class Kind>
double loss_and_gradients(int threads, const Examples &examples, Softmax softmax, int64_t most, float *dvectors) {
    const int64_t count = examples.count, dim = examples.dim;
    most = std::min(most, Kind::MOST);
    const int64_t tiles = softmax.tiles(), blocks = (count + most - 1) / most, width = (count + blocks - 1) / blocks;
    std::unique_ptr<float[]> sums;
    if (softmax.words.half && blocks > 1) sums.reset(softmax.sums = new float[softmax.vocab * dim]);
    Block<Kind> block(width, softmax);
    std::vector<Thread<Kind>> thread_states;
    for (int thread = 0; thread < threads; ++thread) thread_states.emplace_back(block, width, softmax);
    std::vector<float> word(dim);
    double total = 0;
    for (int64_t start = 0; start < count; start += width) {
        const Dense<const float> vectors{examples.vectors + start * dim, dim};
        const int64_t *target = examples.target + start;
        block.read(vectors, examples.share + start, std::min(width, count - start));
        std::atomic<int64_t> next{0};
        share_work(threads, threads, [&](int64_t thread) {
            for (int64_t tile; (tile = next++) < tiles;) score(softmax, tile, block, thread_states[thread]);
        });

        std::vector<float> log_sum(block.places);
        share_work(threads, block.places / LANES,
                   [&](int64_t group) { normalize(tiles, group * LANES, block, &log_sum[group * LANES]); });
        for (int64_t token = 0; token < block.tokens; ++token) {
            float score;
            dots(vectors.from(token), 1, softmax.words_from(target[token], 1, word.data()), 1, &score, 1);
            total += block.share[token] * (log_sum[token] - score - softmax.bias[target[token]]);
        }

        // Each thread has the same tiles in each run, so that sums are reproducible to the last bit.
        share_work(threads, threads, [&](int64_t thread) {
            thread_states[thread].memory.clear();
            for (int64_t tile = tiles * thread / threads; tile < tiles * (thread + 1) / threads; ++tile) {
                if (start == 0)
                    differentiate<To::SET>(softmax, tile, target, block, thread_states[thread]);
                else
                    differentiate<To::ADD>(softmax, tile, target, block, thread_states[thread]);
                if (start + width >= count) softmax.round(tile, thread_states[thread].dwords.data());
            }
        });
        const Dense<float> block_dvectors{dvectors + start * dim, dim};
        std::fill_n(block_dvectors.first, block.tokens * dim, 0.0f);
        for (Thread<Kind> &thread : thread_states) thread.memory.add_to(block_dvectors, block.tokens);
    }
    return total;
}

}  // namespace

bool fused_softmax(int threads, const Examples &examples, int64_t vocab, int64_t most, bool by_unit,
                   const FusedWords &words, const float *bias, float *total, float *dvectors, float *dbias) {
    const int64_t count = examples.count, dim = examples.dim;
    if (std::any_of(examples.target, examples.target + count, [=](int64_t word) { return word < 0 || word >= vocab; }))
        return false;
    if (count == 0) {
        if (words.single)
            std::fill_n(words.dsingle, vocab * dim, 0.0f);
        else
            std::fill_n(words.dhalf, vocab * dim, Bfloat16{0});
        std::fill_n(dbias, vocab, 0.0f);
        *total = 0;
        return true;
    }
    const Softmax softmax{vocab, dim, words, bias, dbias, nullptr};
    const auto loss = by_unit ? loss_and_gradients<ByUnit> : loss_and_gradients<ByVectors>;
    *total = loss(threads, examples, softmax, most, dvectors);
    return true;
}

}  // namespace vocabench
