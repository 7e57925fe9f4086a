#pragma once

#include <mpi.h>

#include <cstddef>
#include <memory>
#include <optional>

#include <stormo/base/dtype.h>
#include <stormo/comm/request.h>
#include <stormo/mpi/library.h>

namespace stormo::mpi {

/// What MPI calls our types; 16-bit floats, which it does not know, are types of our own.
Result<MPI_Datatype> type_of(Library& library, DType dtype);

/// A reduction as MPI knows it, for one operation. User functions of MPI get no context, so that
/// every user's reduction in progress holds one of a few places of the process.
class Arithmetic {
 public:
  /// kExhausted when too many user's reductions are in progress. Averages are sums.
  static Result<Arithmetic> of(Library& library, DType dtype, const comm::Reduction& reduction);
  Arithmetic(Arithmetic&& other) noexcept;
  Arithmetic& operator=(Arithmetic&&) = delete;
  ~Arithmetic();

  MPI_Op op() const { return op_; }
  /// What a user's reduction has thrown on this rank; to be asked once the operation is complete.
  Status outcome() const;
  /// MPI may go on to use it: it is never freed.
  void abandon() { place_.reset(); }

 private:
  Arithmetic(Library& library, MPI_Op op) : library_(&library), op_(op) {}

  Library* library_;
  MPI_Op op_;
  std::optional<std::size_t> place_;  ///< of a user's reduction
};

}  // namespace stormo::mpi
