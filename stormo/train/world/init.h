#pragma once

#include <memory>

#include <stormo/comm/communicator.h>

namespace stormo {

/// This process's place in its job, from init() until it is destroyed. Move-only; converts to the
/// Communicator of all ranks.
///
/// The destructor leaves the group well: it waits until all ranks have come this far. While an
/// exception unwinds the stack it fails the group instead, so that nobody waits for this rank; it
/// never throws. Destroy it last, at the end of main().
class World {
 public:
  World(World&&) noexcept;
  World& operator=(World&&) = delete;
  ~World();

  comm::Communicator& communicator() const { return *communicator_; }
  operator comm::Communicator&() const { return *communicator_; }

  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }
  int local_rank() const { return communicator_->local_rank(); }
  int local_size() const { return communicator_->local_size(); }
  /// Intra-op threads that init() has set.
  int threads() const { return threads_; }

 private:
  friend World init();
  friend World init(std::unique_ptr<comm::Communicator> group);
  explicit World(std::unique_ptr<comm::Communicator> communicator);

  std::unique_ptr<comm::Communicator> communicator_;
  int threads_ = 1;
  int exceptions_at_start_ = 0;
};

/// Joins the job that started this process: `stormo run`, torchrun, srun, mpirun; without any of
/// them a world of one. Blocks until all ranks are there. Then, for the life of the process:
///  - libtorch puts its large tensors into memory that the ranks of this host share;
///  - libtorch computes with (CPUs / ranks that share them) threads, or STORMO_THREADS;
///  - an exception that leaves a thread uncaught fails the group with its text before the process
///    aborts, so that every rank reports it as the first cause.
/// Call once, first thing in main(). Throws Error.
World init();

/// As init(), over a group that the caller has joined: through another engine, or with options of
/// its own.
World init(std::unique_ptr<comm::Communicator> group);

}  // namespace stormo
