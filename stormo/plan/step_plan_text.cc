#include <array>

#include <stormo/plan/limits.h>
#include <stormo/plan/mesh_text.h>
#include <stormo/plan/step_plan.h>
#include <stormo/plan/text.h>

namespace stormo::plan {
namespace {

constexpr std::array kKinds = {ActionKind::kLoad,      ActionKind::kForward,
                               ActionKind::kLoss,      ActionKind::kBackward,
                               ActionKind::kAllReduce, ActionKind::kUpdate,
                               ActionKind::kAllGather, ActionKind::kReduceScatter};

/// Kinds without a range print none, unless the value carries one that validate would refuse.
bool prints_range(const Action& a) {
  return (a.kind != ActionKind::kLoad && a.kind != ActionKind::kLoss) || a.first != 0 ||
         a.last != 0;
}

void append_numbered(std::string& out, const char* what, std::size_t number) {
  out += what;
  append_integer(out, static_cast<std::int64_t>(number));
  out += ": ";
}

void expect_numbered(TextReader& in, std::size_t number) {
  const int found = in.small_integer("its number", 0, kMaxActions);
  if (in.ok() && static_cast<std::size_t>(found) != number) {
    in.fail_at_token("expected number " + std::to_string(number));
  }
  in.expect(":");
}

SegmentShape read_segment(TextReader& in) {
  SegmentShape s;
  s.name = in.word("the segment's name");
  s.num_parameters = in.field("parameters", 0, INT64_MAX);
  s.flops_per_sample = in.field("flops", 0, INT64_MAX);
  in.expect_line_end();
  return s;
}

ActionKind read_kind(TextReader& in) {
  const std::string word = in.word("an action");
  for (const ActionKind kind : kKinds) {
    if (word == to_string(kind)) return kind;
  }
  if (in.ok()) {
    in.fail_at_token("unknown action '" + word +
                     "'; write load, forward, loss, backward, all_reduce, all_gather, "
                     "reduce_scatter or update");
  }
  return {};
}

Action read_action(TextReader& in) {
  Action a;
  a.kind = read_kind(in);
  if (prints_range(a)) {
    a.first = in.small_integer("the first segment", 0, kMaxSegments - 1);
    in.expect("-");
    a.last = in.small_integer("the last segment", a.first, kMaxSegments - 1);
  }
  if (in.accept("over")) a.axis = in.word("an axis");
  in.expect_line_end();
  return a;
}

}  // namespace

std::string to_text(const StepPlan& p) {
  std::string out = "step_plan v1 ";
  append_word(out, p.strategy);
  out += "\nmesh";
  append_axes(out, p.mesh);
  for (std::size_t i = 0; i < p.model.segments.size(); ++i) {
    const SegmentShape& s = p.model.segments[i];
    append_numbered(out, "segment ", i);
    append_word(out, s.name);
    out += " parameters=";
    append_integer(out, s.num_parameters);
    out += " flops=";
    append_integer(out, s.flops_per_sample);
    out += '\n';
  }
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    const Action& a = p.actions[i];
    append_numbered(out, "action ", i);
    out += to_string(a.kind);
    if (prints_range(a)) {
      out += ' ';
      append_integer(out, a.first);
      out += '-';
      append_integer(out, a.last);
    }
    if (!a.axis.empty()) {
      out += " over ";
      append_word(out, a.axis);
    }
    out += '\n';
  }
  return out;
}

Result<StepPlan> parse_step_plan(std::string_view text) {
  TextReader in(text);
  in.expect_header("step_plan");
  StepPlan p;
  p.strategy = in.word("the strategy");
  in.expect_line_end();
  if (in.at_end()) in.fail("expected 'mesh', found nothing");
  in.expect("mesh");
  p.mesh = read_axes(in);
  while (!in.at_end() && in.accept("segment")) {
    expect_numbered(in, p.model.segments.size());
    p.model.segments.push_back(read_segment(in));
    if (p.model.segments.size() > static_cast<std::size_t>(kMaxSegments)) {
      in.fail_at_token("too many segments");
    }
  }
  while (!in.at_end()) {
    in.expect("action");
    expect_numbered(in, p.actions.size());
    p.actions.push_back(read_action(in));
    if (p.actions.size() > static_cast<std::size_t>(kMaxActions)) {
      in.fail_at_token("too many actions");
    }
  }
  if (!in.ok()) return in.status();
  return p;
}

}  // namespace stormo::plan
