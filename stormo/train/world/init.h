#pragma once

#include <memory>

#include <stormo/comm/communicator.h>

namespace stormo {

/// This process's place in its job, from init() until it is destroyed. Move-only; converts to the
/// Communicator of all ranks.
///
/// The destructor leaves the group in order: it blocks until all ranks have called it. While an
/// exception unwinds the stack it makes the group fail instead, so that no rank waits for this one.
/// It never throws. Destroy it last, at the end of main().
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
  friend World init(std::unique_ptr<comm::Communicator> group, int threads);
  explicit World(std::unique_ptr<comm::Communicator> communicator);

  std::unique_ptr<comm::Communicator> communicator_;
  int threads_ = 1;
  int exceptions_at_start_ = 0;
};

/// Joins the job of the launcher that started this process: `stormo run`, torchrun, srun or mpirun;
/// without any of them, a world of one rank. Blocks until all ranks have joined. Then, for the life
/// of the process:
///  - libtorch allocates large tensors in memory that the ranks of this host share;
///  - libtorch uses `threads` threads; 0: as many as STORMO_THREADS says, else OMP_NUM_THREADS (but
///    not the 1 of torchrun), else (CPUs / ranks that share them). A world of one rank looks for
///    0.2 s at the load, and has fewer where other processes use half of the CPUs or more, and says
///    so;
///  - an uncaught exception of any thread makes the group fail with its text before the process
///    aborts, so that every rank reports it as the first cause.
/// The environment stays as it is. `stormo run` sets both variables for its ranks, and
/// GOMP_SPINCOUNT=30000 unless the user has said how threads of OpenMP wait: libgomp reads that
/// when it is loaded, so a program that is started by other means sets it before
/// (docs/environment.md). Call once, at the start of main(). Throws Error.
World init(int threads = 0);

/// As init(), for a group that the caller has joined: with another engine, or with other options.
World init(std::unique_ptr<comm::Communicator> group, int threads = 0);

}  // namespace stormo
