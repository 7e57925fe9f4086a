#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>

namespace stormo::data {

using Tokens = std::vector<std::int32_t>;

/// The first nine tenths, for training, and the rest, for validation.
std::pair<Tokens, Tokens> split_tokens(const Tokens& tokens);

/// A text as samples for predicting the next token: consecutive windows of `context` tokens. Each
/// token is an input once, and its target is the next token. A batch is [B, context] twice, int64.
/// Tokens that do not fill a whole window are left out.
class TextWindows final : public Dataset {
 public:
  enum class Shift : std::uint8_t {
    kNone,      ///< validation: the same windows always
    kPerEpoch,  ///< training: all windows are shifted by f(seed, epoch) in [0, context)
  };
  /// kInvalidArgument when the tokens do not fill one window: context + 1 tokens, with kPerEpoch
  /// 2 * context, so that there are equally many windows at every shift.
  static Result<std::shared_ptr<const TextWindows>> create(Tokens tokens, std::int64_t context,
                                                           Shift shift, std::uint64_t seed);

  std::int64_t size() const override { return windows_; }
  Batch get(std::span<const std::int64_t> indices, std::int64_t epoch) const override;
  std::uint64_t fingerprint() const override;
  std::int64_t shift_of(std::int64_t epoch) const;

 private:
  TextWindows(Tokens tokens, std::int64_t context, Shift shift, std::uint64_t seed,
              std::int64_t windows);

  Tokens tokens_;
  std::int64_t context_;
  Shift shift_;
  std::uint64_t seed_;
  std::int64_t windows_;
};

}  // namespace stormo::data
