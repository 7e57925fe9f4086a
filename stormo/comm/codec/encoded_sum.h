#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::comm {

/// Sums of float32 numbers over the ranks of a group, which travel in a codec that encodes:
/// SumOfCodes, LowRankSum. Where the codec has error feedback the sum keeps what it lost, and adds
/// it to the next sum, so that what sums lose does not grow. All ranks get the same bits. One
/// object serves the sums of one list of numbers, one after the other.
///
/// Papers: F. Seide et al., "1-bit stochastic gradient descent", Interspeech 2014 (error feedback);
/// S. P. Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019.
class EncodedSum {
 public:
  EncodedSum(const EncodedSum&) = delete;
  virtual ~EncodedSum() = default;

  /// For engines: does what a request with this object in Request::encoding asks for, in operations
  /// that `perform` runs one after the other. all_reduce of one buffer, or of some codecs
  /// reduce_scatter to equal parts; sums of float32. kInvalidArgument otherwise.
  using Perform = std::function<Status(const Request&)>;
  Status perform(const Request& request, const Perform& perform);

  std::int64_t count() const { return count_; }
  int ranks() const { return world_.size(); }
  /// How many there were. What is drawn at random depends on it, so another object goes on with it
  /// bit for bit.
  std::uint64_t sums() const { return sums_; }
  void set_sums(std::uint64_t sums) { sums_ = sums; }

  /// Numbers that are kept from sum to sum.
  struct Kept {
    /// Empty: what was lost on this rank. Else what all ranks have alike.
    std::string_view name;
    std::span<float> numbers;
    std::int64_t rows;  ///< in so many equal rows
  };
  virtual std::vector<Kept> kept() = 0;

 protected:
  /// `codec`: its word; `count`: numbers of a whole. `world` is borrowed.
  EncodedSum(Communicator& world, std::string_view codec, std::int64_t count)
      : world_(world), codec_(codec), count_(count) {}

  /// Of a request that is sound.
  virtual Status sum(const Request& request, const Perform& perform) = 0;
  virtual bool scatters() const = 0;

  Communicator& world() const { return world_; }
  /// Zeros, where peers read them as they lie.
  using Bytes = std::unique_ptr<std::byte[], std::function<void(std::byte*)>>;
  Bytes allocate(std::int64_t bytes) const;

 private:
  Status check(const Request& request) const;

  Communicator& world_;
  std::string_view codec_;
  std::int64_t count_;
  std::uint64_t sums_ = 0;
};

}  // namespace stormo::comm
