#include <stormo/data/fingerprint.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <vector>

namespace stormo::data {
namespace {

constexpr std::size_t kBlockBytes = Fingerprint::kMostBytes / Fingerprint::kBlocks;
constexpr std::size_t kAlignment = 64;

struct Block {
  std::size_t begin, bytes;
};

// Side by side where all of them are wanted.
std::vector<Block> blocks_of(std::size_t bytes) {
  std::vector<Block> blocks;
  if (bytes <= Fingerprint::kMostBytes) {
    for (std::size_t at = 0; at < bytes; at += kBlockBytes) {
      blocks.push_back({at, std::min(kBlockBytes, bytes - at)});
    }
    return blocks;
  }
  for (std::size_t i = 0; i < Fingerprint::kBlocks; ++i) {
    const std::size_t begin = (bytes - kBlockBytes) * i / (Fingerprint::kBlocks - 1);
    blocks.push_back({begin / kAlignment * kAlignment, kBlockBytes});
  }
  blocks.back().bytes = bytes - blocks.back().begin;
  return blocks;
}

}  // namespace

struct Fingerprint::State {
  XXH3_state_t xxh3;
};

Fingerprint::Fingerprint() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh3); }

Fingerprint::~Fingerprint() = default;

// The size comes first, so that "ab","c" and "a","bc" differ.
void Fingerprint::add(std::span<const std::byte> range) {
  add(std::ssize(range));
  hash(range);
}

void Fingerprint::add(std::size_t bytes, const Reader& read) {
  add(static_cast<std::int64_t>(bytes));
  std::vector<std::byte> content;
  for (const Block& block : blocks_of(bytes)) {
    content.resize(block.bytes);
    read(block.begin, content);
    hash(content);
  }
}

void Fingerprint::add(std::string_view text) { add(std::as_bytes(std::span(text))); }

void Fingerprint::add(std::int64_t number) { hash(std::as_bytes(std::span(&number, 1))); }

std::uint64_t Fingerprint::value() const { return XXH3_64bits_digest(&state_->xxh3); }

void Fingerprint::hash(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

}  // namespace stormo::data
