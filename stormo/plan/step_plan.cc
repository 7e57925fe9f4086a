#include <stormo/plan/step_plan.h>

#include <set>
#include <string>

#include <stormo/plan/hash.h>
#include <stormo/plan/limits.h>

namespace stormo::plan {
namespace {

/// What has happened to a segment so far.
enum class Progress : std::uint8_t { kNothing, kForward, kBackward, kUpdate };

Status bad(std::string message) { return Status(Code::kBadPlan, std::move(message)); }

bool is_collective(ActionKind kind) {
  return kind == ActionKind::kAllReduce || kind == ActionKind::kAllGather ||
         kind == ActionKind::kReduceScatter;
}

bool has_range(ActionKind kind) { return kind != ActionKind::kLoad && kind != ActionKind::kLoss; }

Status check_mesh(const Mesh& mesh) {
  std::set<std::string> names;
  std::int64_t size = 1;
  for (const Axis& axis : mesh.axes) {
    if (axis.name.empty()) return bad("mesh: an axis has no name");
    if (!names.insert(axis.name).second)
      return bad("mesh: axis '" + axis.name + "' is there twice");
    if (axis.size < 1) return bad("mesh: axis '" + axis.name + "' has no ranks");
    size *= axis.size;
    if (size > kMaxRanks) return bad("mesh: more than " + std::to_string(kMaxRanks) + " ranks");
  }
  return {};
}

/// Walks the actions once and keeps, for each segment, what has happened to it.
class ActionCheck {
 public:
  explicit ActionCheck(const StepPlan& plan)
      : plan_(plan),
        segments_(plan.model.segments.size(), Progress::kNothing),
        in_parts_(plan.model.segments.size()),
        gathered_(plan.model.segments.size()) {}

  Status next(const Action& a) {
    STORMO_RETURN_IF_ERROR(check_shape(a));
    switch (a.kind) {
      case ActionKind::kLoad:
        if (loaded_) return bad("loads the batch a second time");
        loaded_ = true;
        return {};
      case ActionKind::kLoss: return loss(a);
      case ActionKind::kForward:
        if (!loaded_) return bad("comes before the batch is loaded");
        return advance(a, Progress::kNothing, Progress::kForward);
      case ActionKind::kBackward:
        if (!lost_) return bad("comes before the loss");
        return advance(a, Progress::kForward, Progress::kBackward);
      case ActionKind::kAllReduce: return advance(a, Progress::kBackward, Progress::kBackward);
      case ActionKind::kUpdate: return advance(a, Progress::kBackward, Progress::kUpdate);
      case ActionKind::kAllGather: return gather(a);
      case ActionKind::kReduceScatter: return scatter(a);
    }
    return bad("is of no known kind");
  }

  Status finish() const {
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      if (segments_[i] != Progress::kUpdate) {
        return bad("segment " + std::to_string(i) + " is never updated");
      }
      if (in_parts_[i] && !gathered_[i]) {
        return bad("segment " + std::to_string(i) + " is updated in parts and never gathered");
      }
    }
    if (!lost_) return bad("no action computes the loss");
    return {};
  }

 private:
  Status check_shape(const Action& a) const {
    const int count = static_cast<int>(segments_.size());
    if (has_range(a.kind) && (a.first < 0 || a.first > a.last || a.last >= count)) {
      return bad("has segments " + std::to_string(a.first) + "-" + std::to_string(a.last) +
                 ", but the model has " + std::to_string(count));
    }
    if (!has_range(a.kind) && (a.first != 0 || a.last != 0)) return bad("takes no segments");
    if (!is_collective(a.kind)) {
      return a.axis.empty() ? Status() : bad("takes no axis");
    }
    if (plan_.mesh.find(a.axis) < 0) return bad("axis '" + a.axis + "' is not in the mesh");
    return {};
  }

  Status loss(const Action&) {
    if (lost_) return bad("computes the loss a second time");
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      if (segments_[i] != Progress::kForward) {
        return bad("comes before the forward of segment " + std::to_string(i));
      }
    }
    lost_ = true;
    return {};
  }

  /// Each segment of the range must be at `from` and moves to `to`; a chain runs forward from its
  /// first segment and backward from its last.
  Status advance(const Action& a, Progress from, Progress to) {
    const auto first = static_cast<std::size_t>(a.first), last = static_cast<std::size_t>(a.last);
    for (std::size_t i = first; i <= last; ++i) {
      if (segments_[i] != from) {
        return bad("finds segment " + std::to_string(i) + " " + describe(segments_[i]));
      }
      segments_[i] = to;
    }
    if (a.kind == ActionKind::kForward && first > 0 && segments_[first - 1] != to) {
      return bad("needs the output of segment " + std::to_string(first - 1) + " first");
    }
    if (a.kind == ActionKind::kBackward && last + 1 < segments_.size() &&
        segments_[last + 1] == Progress::kForward) {
      return bad("needs the gradient of segment " + std::to_string(last + 1) + " first");
    }
    return {};
  }

  Status scatter(const Action& a) {
    STORMO_RETURN_IF_ERROR(advance(a, Progress::kBackward, Progress::kBackward));
    for (int i = a.first; i <= a.last; ++i) {
      if (in_parts_[static_cast<std::size_t>(i)]) {
        return bad("finds segment " + std::to_string(i) + " reduced to parts already");
      }
      in_parts_[static_cast<std::size_t>(i)] = true;
    }
    return {};
  }

  /// Before a forward or a backward, or after the update. A gather before the backward alone does
  /// not count as one: the forward has used what was there.
  Status gather(const Action& a) {
    for (int s = a.first; s <= a.last; ++s) {
      const auto i = static_cast<std::size_t>(s);
      if (segments_[i] == Progress::kBackward) {
        return bad("finds segment " + std::to_string(s) + " " + describe(segments_[i]));
      }
      if (segments_[i] != Progress::kForward) gathered_[i] = true;
    }
    return {};
  }

  static std::string describe(Progress p) {
    switch (p) {
      case Progress::kNothing: return "before its forward";
      case Progress::kForward: return "after its forward, before its backward";
      case Progress::kBackward: return "after its backward, before its update";
      case Progress::kUpdate: return "after its update";
    }
    return "in no known state";
  }

  const StepPlan& plan_;
  std::vector<Progress> segments_;
  std::vector<bool> in_parts_;  ///< its gradient has been reduced to parts
  std::vector<bool> gathered_;  ///< its parameters have been made whole for a forward
  bool loaded_ = false;
  bool lost_ = false;
};

}  // namespace

std::string_view to_string(ActionKind kind) {
  switch (kind) {
    case ActionKind::kLoad: return "load";
    case ActionKind::kForward: return "forward";
    case ActionKind::kLoss: return "loss";
    case ActionKind::kBackward: return "backward";
    case ActionKind::kAllReduce: return "all_reduce";
    case ActionKind::kUpdate: return "update";
    case ActionKind::kAllGather: return "all_gather";
    case ActionKind::kReduceScatter: return "reduce_scatter";
  }
  return "unknown";
}

std::uint64_t hash(const StepPlan& p) {
  Hasher h;
  h.add("step_plan v1");
  h.add(p.strategy);
  h.add(hash(p.mesh));
  h.add(std::uint64_t{p.model.segments.size()});
  for (const SegmentShape& s : p.model.segments) {
    h.add(s.name);
    h.add(static_cast<std::uint64_t>(s.num_parameters));
    h.add(static_cast<std::uint64_t>(s.flops_per_sample));
  }
  h.add(std::uint64_t{p.actions.size()});
  for (const Action& a : p.actions) {
    h.add(static_cast<std::uint64_t>(a.kind));
    h.add(static_cast<std::uint64_t>(a.first));
    h.add(static_cast<std::uint64_t>(a.last));
    h.add(a.axis);
  }
  return h.value();
}

Status validate(const StepPlan& p) {
  STORMO_RETURN_IF_ERROR(check_mesh(p.mesh));
  if (p.model.segments.empty()) return bad("the model has no segments");
  for (std::size_t i = 0; i < p.model.segments.size(); ++i) {
    const SegmentShape& s = p.model.segments[i];
    if (s.num_parameters < 0 || s.flops_per_sample < 0) {
      return bad("segment " + std::to_string(i) + " has a negative size");
    }
  }
  ActionCheck check(p);
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    const Status st = check.next(p.actions[i]);
    if (!st.ok()) {
      return st.within("action " + std::to_string(i) + " (" +
                       std::string(to_string(p.actions[i].kind)) + ")");
    }
  }
  return check.finish();
}

}  // namespace stormo::plan
