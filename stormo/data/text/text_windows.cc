#include <stormo/data/text/text_windows.h>

#include <fmt/format.h>

#include <algorithm>

#include <stormo/base/check.h>
#include <stormo/base/rng.h>
#include <stormo/data/fingerprint.h>

namespace stormo::data {

std::pair<Tokens, Tokens> split_tokens(const Tokens& tokens) {
  const auto cut = tokens.begin() + std::ssize(tokens) / 10 * 9 + std::ssize(tokens) % 10 * 9 / 10;
  return {Tokens(tokens.begin(), cut), Tokens(cut, tokens.end())};
}

Result<std::shared_ptr<const TextWindows>> TextWindows::create(Tokens tokens, std::int64_t context,
                                                               Shift shift, std::uint64_t seed) {
  if (context < 1) {
    return invalid_argument(fmt::format("model.context is {}; it must be at least 1", context));
  }
  // The last input of the last window needs a target, and the largest shift must leave room.
  const std::int64_t spare = shift == Shift::kPerEpoch ? context : 1;
  if (std::ssize(tokens) < context + spare) {
    return invalid_argument(fmt::format(
        "a text of {} tokens is too short for a context of {}: this part of it needs at least {} "
        "tokens (a tenth of the text is for validation); use a longer text or a smaller context",
        tokens.size(), context, context + spare));
  }
  const std::int64_t windows = (std::ssize(tokens) - spare) / context;
  return std::shared_ptr<const TextWindows>(
      new TextWindows(std::move(tokens), context, shift, seed, windows));
}

TextWindows::TextWindows(Tokens tokens, std::int64_t context, Shift shift, std::uint64_t seed,
                         std::int64_t windows)
    : tokens_(std::move(tokens)),
      context_(context),
      shift_(shift),
      seed_(seed),
      windows_(windows) {}

std::int64_t TextWindows::shift_of(std::int64_t epoch) const {
  if (shift_ == Shift::kNone) return 0;
  Rng rng(seed_, "text shift", static_cast<std::uint64_t>(epoch));
  return static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(context_)));
}

Batch TextWindows::get(std::span<const std::int64_t> indices, std::int64_t epoch) const {
  Batch batch{torch::empty({std::ssize(indices), context_}, torch::kInt64),
              torch::empty({std::ssize(indices), context_}, torch::kInt64)};
  auto* input = batch.input.mutable_data_ptr<std::int64_t>();
  auto* target = batch.target.mutable_data_ptr<std::int64_t>();
  const std::int64_t shift = shift_of(epoch);
  for (const std::int64_t index : indices) {
    STORMO_CHECK(index >= 0 && index < windows_, "sample index out of range");
    const std::int32_t* window = tokens_.data() + shift + index * context_;
    input = std::copy_n(window, context_, input);
    target = std::copy_n(window + 1, context_, target);
  }
  return batch;
}

std::uint64_t TextWindows::fingerprint() const {
  Fingerprint content;
  content.add(context_);
  content.add(shift_ == Shift::kPerEpoch ? static_cast<std::int64_t>(seed_) : -1);
  content.add(std::as_bytes(std::span(tokens_)));
  return content.value();
}

}  // namespace stormo::data
