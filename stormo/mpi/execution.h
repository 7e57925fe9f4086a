#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <stormo/comm/operation/operation.h>
#include <stormo/comm/request.h>
#include <stormo/mpi/arithmetic.h>
#include <stormo/mpi/join.h>
#include <stormo/mpi/link.h>

namespace stormo::mpi {

/// Memory that MPI uses during an operation, kept between operations. It is never freed if MPI
/// cannot cancel a request that uses it.
struct Scratch {
  std::vector<std::byte> stage;  ///< small buffers, packed
  std::vector<std::byte> aside;  ///< copy of data that an operation would overwrite
  std::vector<int> counts;
  std::vector<int> begins;
  std::vector<std::int64_t> their_counts;
  std::vector<comm::Operation> operations;
  double weight = 0;
};

/// One collective that is executed by MPI.
class Execution {
 public:
  struct Call {
    const comm::Request& request;
    comm::Operation operation;
    Deadline by;
  };
  Execution(Link& link, Scratch& scratch, const Call& call, const Options& options)
      : link_(link), scratch_(scratch), call_(call), r_(call.request), options_(options) {}

  /// OK when every rank has called the same operation; else kMismatch on all ranks, with a table of
  /// the calls. Only for collectives.
  Status compare();
  Status collective();

 private:
  /// Bytes for or from another rank.
  struct Block {
    Rank peer;
    std::byte* data;
    std::int64_t bytes;
  };
  Status all_called();

  // execution.cc: any number of buffers, in place
  Status in_place();
  Status agree_on_outcome();
  Status scale();
  Result<double> own_factor();
  Status packed(std::span<const comm::Buffer> buffers);
  Status whole(std::byte* data, std::int64_t count);
  Status piece(std::byte* data, int count);
  Status exclusive_scan(std::byte* data, int count);

  // parts.cc: one buffer in, one out
  Status parts();
  Status all_gather();
  Status gather();
  Status scatter();
  Status reduce_scatter();
  Status reduce_scatter_into(std::byte* out);
  Status all_to_all();
  Status compare_blocks();
  Status exchange(std::span<const Block> sends, std::span<const Block> receives);
  std::int64_t count_of(Rank r) const;
  std::int64_t begin_of(Rank r) const;
  std::byte* place_of(const comm::Buffer& whole, Rank r) const;
  Block part_of(const comm::Buffer& whole, Rank r) const;
  void list_parts();
  bool fits_one_call() const;

  std::int64_t width() const { return static_cast<std::int64_t>(size_of(call_.operation.dtype)); }
  int length(std::int64_t count) const { return static_cast<int>(count); }
  std::int64_t count_per_call() const {
    return std::max<std::int64_t>(1, options_.bytes_per_call / width());
  }

  Link& link_;
  Scratch& scratch_;
  const Call& call_;
  const comm::Request& r_;
  const Options& options_;
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
  std::optional<Arithmetic> arithmetic_;
};

}  // namespace stormo::mpi
