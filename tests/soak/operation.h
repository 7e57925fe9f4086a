#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <stormo/base/dtype.h>
#include <stormo/base/rng.h>
#include <stormo/comm/communicator.h>
#include <stormo/schedule/builders.h>

/// Random operations and their serial oracle: what every rank has before and must have after.
namespace stormo::soak {

/// An operation of a group, the same on all of its ranks. Terms are small whole numbers, so that
/// every type holds every outcome but averages exactly.
struct Operation {
  comm::OperationKind kind = comm::OperationKind::kBarrier;
  comm::ReduceOp op = comm::ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  int ranks = 1;
  Rank root = 0;
  Rank peer = 0;           ///< of a message from root
  std::int64_t count = 0;  ///< of each rank's part, when they are equal
  /// Elements from rank a to rank b of all_to_all: lengths[a][b]; else of rank r's part:
  /// lengths[r][0].
  std::vector<std::vector<std::int64_t>> lengths;
  bool equal_parts = true;
  int num_buffers = 1;    ///< in-place collectives: one operation on so many
  std::string algorithm;  ///< empty: the selected one
  int pieces = 1;
  bool asynchronous = false;
  std::uint64_t seed = 0;  ///< of the terms

  std::string text() const;
};

/// For a group of `ranks_per_host`; `max_count` bounds each rank's buffers.
Operation random_operation(Rng& rng, const std::vector<int>& ranks_per_host,
                           std::int64_t max_count);

/// The largest of those by `builder`, summing float64; none: it is not for such groups.
std::optional<Operation> greatest_operation(const schedule::Builder& builder,
                                            const std::vector<int>& ranks_per_host,
                                            std::int64_t max_count);

/// Values, one for each element. Of the buffer that rank `me` gives to the operation.
std::vector<double> input(const Operation& o, Rank me);
/// Of the buffer that it gets back (in place: the same one); empty when it is unspecified.
std::vector<double> output(const Operation& o, Rank me);
double weight(const Operation& o, Rank me);

/// Elements of a type from values and back.
std::vector<std::byte> encode(DType dtype, const std::vector<double>& values);
std::vector<double> decode(DType dtype, const std::byte* elements, std::size_t count);
/// Whether `got` is the outcome `want`: to the last bit, averages to the type's precision.
bool agree(const Operation& o, const std::vector<double>& got, const std::vector<double>& want);

}  // namespace stormo::soak
