#pragma once

#include <mpi.h>

#include <cstddef>
#include <optional>

#include <stormo/base/dtype.h>
#include <stormo/comm/request.h>
#include <stormo/mpi/library.h>

namespace stormo::mpi {

/// The MPI datatype of a DType. MPI has no 16-bit floats, so Stormo defines types for them.
Result<MPI_Datatype> type_of(Library& library, DType dtype);

/// The MPI_Op of a reduction, for one operation. User functions of MPI get no context argument, so
/// every pending user-defined reduction takes one of a fixed number of slots of the process.
class Arithmetic {
 public:
  /// kExhausted when too many user-defined reductions are pending. Averages become sums.
  static Result<Arithmetic> of(Library& library, DType dtype, const comm::Reduction& reduction);
  Arithmetic(Arithmetic&& other) noexcept;
  Arithmetic& operator=(Arithmetic&&) = delete;
  ~Arithmetic();

  MPI_Op op() const { return op_; }
  /// The exception of a user-defined reduction on this rank, as a Status; call it when the
  /// operation is complete.
  Status outcome() const;
  /// Never frees the MPI_Op, because MPI may still use it.
  void abandon() { place_.reset(); }

 private:
  Arithmetic(Library& library, MPI_Op op) : library_(&library), op_(op) {}

  Library* library_;
  MPI_Op op_;
  std::optional<std::size_t> place_;  ///< of a user's reduction
};

}  // namespace stormo::mpi
