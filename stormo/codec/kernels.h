#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <stormo/codec/codec.h>

// The arithmetic of codecs, for their rows: CodecRow says what each function does.
namespace stormo::codec {

/// 256 neighbours have one scale, a float32, and each is a whole number of so many bits times the
/// scale: of 8 bits -127 to 127, of 2 bits -1 to 1. The largest of a block has the largest number.
/// The words of a block have 16 neighbours at the same bits, so that vectors of any length pack
/// them. A block with a value that is not finite becomes one of NaN, and nothing of it is kept; of
/// one whose scale would be below the smallest normal float32 zeros are sent, and all is kept.
///
/// Papers: W. Wen et al., "TernGrad", NeurIPS 2017 (2 bits, drawn); D. Alistarh et al., "QSGD",
/// NeurIPS 2017 (more bits, drawn; here with the largest of a block as its norm).
namespace whole_numbers {

template <int kBits>
constexpr std::int64_t bytes(std::int64_t numbers, double /*density*/) {
  constexpr std::int64_t kBlock = 256;
  return (numbers + kBlock - 1) / kBlock * (4 + kBlock * kBits / 8);
}

/// The nearest whole number.
void encode_nearest8(std::span<float> values, std::byte* code, const CodeKey& key);
void encode_nearest4(std::span<float> values, std::byte* code, const CodeKey& key);
/// One of the two nearest, at random, so that their mean is the value.
void encode_drawn4(std::span<float> values, std::byte* code, const CodeKey& key);
void encode_drawn2(std::span<float> values, std::byte* code, const CodeKey& key);
void decode_add8(const std::byte* code, std::span<float> values, const CodeKey& key);
void decode_add4(const std::byte* code, std::span<float> values, const CodeKey& key);
void decode_add2(const std::byte* code, std::span<float> values, const CodeKey& key);

}  // namespace whole_numbers

/// 512 neighbours have one magnitude, the mean of theirs, a float32, and each its sign. Words, and
/// blocks that are not finite or too small, as of whole numbers.
///
/// Papers: F. Seide et al., "1-bit stochastic gradient descent", Interspeech 2014; J. Bernstein et
/// al., "signSGD", ICML 2018; S. P. Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019
/// (this scale).
namespace sign {

constexpr std::int64_t bytes(std::int64_t numbers, double /*density*/) {
  constexpr std::int64_t kBlock = 512;
  return (numbers + kBlock - 1) / kBlock * (4 + kBlock / 8);
}
void encode(std::span<float> values, std::byte* code, const CodeKey& key);
void decode_add(const std::byte* code, std::span<float> values, const CodeKey& key);

}  // namespace sign

/// How many of so many numbers travel: their share, rounded, but at least one.
std::int64_t kept_of(std::int64_t numbers, double density);

/// The largest numbers of a message, as float32 in the order of their places; of equal ones the
/// first. Behind them the places: one bit for each number or an index for each that travels,
/// whichever is less. Numbers that are not finite are larger than all others.
///
/// Papers: A. F. Aji and K. Heafield, "Sparse communication for distributed gradient descent",
/// EMNLP 2017; S. U. Stich et al., "Sparsified SGD with memory", NeurIPS 2018.
namespace top_k {

std::int64_t bytes(std::int64_t numbers, double density);
void encode(std::span<float> values, std::byte* code, const CodeKey& key);
void decode_add(const std::byte* code, std::span<float> values, const CodeKey& key);

}  // namespace top_k

/// Numbers from a magnitude on that about as many have as shall travel, estimated from a sample,
/// and the index of each. Where more have it, those that come first from a place that is drawn;
/// where fewer, the code has room left. Faster than top_k, which counts all numbers three times.
///
/// Papers: N. Strom, "Scalable distributed DNN training using commodity GPU cloud computing",
/// Interspeech 2015; Y. Lin et al., "Deep gradient compression", ICLR 2018 (the sample).
namespace threshold {

std::int64_t bytes(std::int64_t numbers, double density);
void encode(std::span<float> values, std::byte* code, const CodeKey& key);
void decode_add(const std::byte* code, std::span<float> values, const CodeKey& key);

}  // namespace threshold

/// One number of each of so many stretches of equal length, at a place drawn from the seed: with
/// the same seed those of all ranks are of the same places, so that codes can be added up. A
/// message with a number that is not finite becomes one of NaN, and nothing of it is kept.
///
/// Paper: S. U. Stich et al., as above.
namespace random_k {

std::int64_t bytes(std::int64_t numbers, double density);
void encode(std::span<float> values, std::byte* code, const CodeKey& key);
void decode_add(const std::byte* code, std::span<float> values, const CodeKey& key);

}  // namespace random_k

}  // namespace stormo::codec
