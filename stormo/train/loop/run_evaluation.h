#pragma once

#include <cstdint>
#include <functional>

#include <stormo/base/status.h>
#include <stormo/train/evaluation/evaluate.h>
#include <stormo/train/loop/run_context.h>
#include <stormo/train/loop/run_model.h>
#include <stormo/train/loop/run_saves.h>

namespace stormo::train {

/// Evaluations of a run in between and at its end, and what follows from them: which state is the
/// best, and whether to stop.
class RunEvaluation {
 public:
  /// Where other workers train meanwhile.
  struct Beside {
    std::function<void()> alive;  ///< shows that this one gets on
    /// Saves as of a step before which nothing is left to do.
    std::function<Status(const std::function<Status()>&)> save;
  };

  /// All borrowed.
  RunEvaluation(RunContext& run, RunModel& model, RunSaves& saves)
      : run_(run), model_(model), saves_(saves) {}

  void go_beside(Beside beside) { beside_ = std::move(beside); }
  /// Evaluates the present step, while its parameters can be read. A collective.
  Status evaluate_all(bool at_end);
  /// Whether the run need not go on; the same on all ranks.
  bool is_enough() const { return enough_; }
  void set_enough() { enough_ = true; }

 private:
  Status judge(const Evaluation& validation);
  Status save_best();

  RunContext& run_;
  RunModel& model_;
  RunSaves& saves_;
  Beside beside_;
  std::int64_t evaluated_step_ = -1;
  bool enough_ = false;  // patience has run out, or the optimizer has converged
};

}  // namespace stormo::train
