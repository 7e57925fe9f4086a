#include <algorithm>
#include <optional>
#include <ranges>
#include <utility>

#include <stormo/plan/limits.h>
#include <stormo/plan/logical_shards.h>
#include <stormo/plan/mesh_text.h>
#include <stormo/plan/mixing/mixing.h>
#include <stormo/plan/step_plan.h>
#include <stormo/plan/text/text.h>

namespace stormo::plan {
namespace {

constexpr int kVersion = 2;
constexpr std::size_t kActionColumn = 40;  // where comments begin

void append_numbered(std::string& out, const char* what, std::size_t number) {
  out += what;
  append_integer(out, static_cast<std::int64_t>(number));
  out += ": ";
}

void append_field(std::string& out, const char* key, std::int64_t value) {
  out += key;
  append_integer(out, value);
}

void append_list(std::string& out, const std::vector<std::string>& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += ',';
    append_word(out, words[i]);
  }
}

/// " sums 8192,8192"; nothing for none.
void append_counts(std::string& out, const std::string& what,
                   const std::vector<std::int64_t>& counts) {
  for (std::size_t i = 0; i < counts.size(); ++i) {
    out += i == 0 ? what : ",";
    append_integer(out, counts[i]);
  }
}

/// " window 16,32,32 kernel 3 stride 2 padding 1".
void append(std::string& out, const char* what, const Window& w) {
  append_field(out, what, w.channels);
  append_field(out, ",", w.height);
  append_field(out, ",", w.width);
  append_field(out, " kernel ", w.kernel);
  if (w.stride != 1) append_field(out, " stride ", w.stride);
  if (w.padding != 0) append_field(out, " padding ", w.padding);
}

/// " states 0 to 1 of 128, 1 to 0 of 64".
void append(std::string& out, const std::vector<StateCrossing>& exchange) {
  const char* before = " states ";
  for (const StateCrossing& c : exchange) {
    append_field(out, std::exchange(before, ", "), c.from);
    append_field(out, " to ", c.to);
    append_field(out, " of ", c.elements);
  }
}

void append(std::string& out, const SegmentShape& s, std::size_t& parameter) {
  append_word(out, s.name);
  append_field(out, " flops=", s.flops_per_sample);
  for (std::size_t i = 0; i < s.borrowed.size(); ++i) {
    append_field(out, i == 0 ? " borrows " : ",", s.borrowed[i]);
  }
  if (s.stage != 0) append_field(out, " stage ", s.stage);
  if (s.heads != 0) append_field(out, " heads ", s.heads);
  for (const auto& [what, sums] : named(s.sums)) {
    append_counts(out, ' ' + std::string(what) + ' ', *sums);
  }
  if (s.splits_output) out += " splits_output";
  if (s.positions != 0) append_field(out, " positions ", s.positions);
  if (s.keys != 0) append_field(out, " keys ", s.keys);
  for (const Window& w : s.windows) append(out, " window ", w);
  for (const Window& w : s.split_windows) append(out, " split_window ", w);
  for (const auto& exchange : s.state_crossings) append(out, exchange);
  for (std::size_t i = 0; i < s.norms.size(); ++i) {
    append_field(out, i == 0 ? " norms " : ",", s.norms[i]);
  }
  if (s.spatial_all_reduce != 0) append_field(out, " spatial_all_reduce ", s.spatial_all_reduce);
  out += '\n';
  for (const ParameterShape& p : s.parameters) {
    append_numbered(out, "  parameter ", parameter++);
    append_word(out, p.name);
    append_field(out, " elements=", p.elements);
    out += " type=";
    out += to_string(p.dtype);
    if (p.rows != 0) append_field(out, " rows ", p.rows);
    if (!p.trainable) out += " frozen";
    if (p.sparse) out += " sparse";
    if (p.elsewhere) out += " elsewhere";
    if (p.split.units != 0) append_field(out, " split ", p.split.units);
    if (p.split.dim != 0) append_field(out, " dim ", p.split.dim);
    if (p.split.blocks != 1) append_field(out, " blocks ", p.split.blocks);
    append_counts(out, " counts ", p.split.counts);
    out += '\n';
  }
}

void append_placements(std::string& out, const char* what, const std::vector<Placement>& on) {
  out += what;
  for (const Placement p : on) {
    out += ' ';
    out += to_string(p);
  }
  out += '\n';
}

/// Of a segment or a parameter by its number; empty when it is not in the model.
std::string name_of(const ModelShape& model, RangeOf of, int number) {
  if (number < 0) return {};
  auto left = static_cast<std::size_t>(number);
  if (of == RangeOf::kSegments) {
    return left < model.segments.size() ? model.segments[left].name : std::string();
  }
  for (const SegmentShape& s : model.segments) {
    if (left < s.parameters.size()) return s.parameters[left].name;
    left -= s.parameters.size();
  }
  return {};
}

/// What a range is, in the model's names; empty when it is not in the model.
std::string names_of(const ModelShape& model, const Action& a) {
  const RangeOf of = row_of(a.kind).range;
  if (of == RangeOf::kNothing || a.range.first > a.range.last) return {};
  const std::string first = name_of(model, of, a.range.first);
  const std::string last = name_of(model, of, a.range.last);
  if (first.empty() || last.empty()) return {};
  return a.range.size() == 1 ? first : first + " .. " + last;
}

/// A control character or a line end in a name must not leave its comment.
bool fits_comment(const std::string& names) {
  return !names.empty() && std::ranges::all_of(names, [](char c) { return c >= ' ' && c != 127; });
}

void expect_number(TextReader& in, std::size_t number) {
  const int found = in.small_integer("its number", 0, kMaxActions);
  if (in.ok() && static_cast<std::size_t>(found) != number) {
    in.fail_at_token("expected number " + std::to_string(number));
  }
  in.expect(":");
}

template <class Enum, class List>
Enum read_enum(TextReader& in, const char* what, const List& all) {
  const std::string word = in.word(what);
  std::string known;
  for (const Enum e : all) {
    if (word == to_string(e)) return e;
    known += (known.empty() ? "" : ", ") + std::string(to_string(e));
  }
  if (in.ok()) {
    in.fail_at_token("'" + word + "' is not " + what + "; there are " + known);
  }
  return {};
}

/// "8192,8192".
std::vector<std::int64_t> read_sums(TextReader& in) {
  std::vector<std::int64_t> sums;
  do {
    if (sums.size() == kMaxInnerSums) in.fail("too many sums");
    sums.push_back(in.integer("a number of elements", 0, INT64_MAX));
  } while (in.ok() && in.accept(","));
  return sums;
}

/// "300,484": of each rank, at most `units` together.
std::vector<std::int64_t> read_unit_counts(TextReader& in, std::int64_t units) {
  std::vector<std::int64_t> counts;
  do {
    if (counts.size() == static_cast<std::size_t>(kMaxRanks)) in.fail("too many ranks");
    counts.push_back(in.integer("a number of units that are left", 0, units));
    units -= counts.back();
  } while (in.ok() && in.accept(","));
  return counts;
}

Window read_window(TextReader& in) {
  Window w;
  w.channels = in.integer("a number of channels", 1, kMaxExtent);
  in.expect(",");
  w.height = in.integer("a height", 1, kMaxExtent);
  in.expect(",");
  w.width = in.integer("a width", 1, kMaxExtent);
  in.expect("kernel");
  w.kernel = in.small_integer("the side of a kernel", 1, kMaxExtent);
  if (in.accept("stride")) w.stride = in.small_integer("a stride", 1, kMaxExtent);
  if (in.accept("padding")) w.padding = in.small_integer("a padding", 0, kMaxExtent);
  return w;
}

std::vector<Window> read_windows(TextReader& in, const char* what) {
  std::vector<Window> windows;
  while (in.ok() && in.accept(what)) {
    if (windows.size() == kMaxInnerSums) in.fail("too many windows");
    windows.push_back(read_window(in));
  }
  return windows;
}

/// "0 to 1 of 128, 1 to 0 of 64".
std::vector<StateCrossing> read_state_crossings(TextReader& in) {
  std::vector<StateCrossing> exchange;
  do {
    if (exchange.size() == kMaxStateCrossings) in.fail("too many pairs of ranks");
    StateCrossing& c = exchange.emplace_back();
    c.from = in.small_integer("a rank", 0, kMaxRanks - 1);
    in.expect("to");
    c.to = in.small_integer("a rank", 0, kMaxRanks - 1);
    in.expect("of");
    c.elements = in.integer("a number of elements", 1, INT64_MAX);
  } while (in.ok() && in.accept(","));
  return exchange;
}

SegmentShape read_segment(TextReader& in) {
  SegmentShape s;
  s.name = in.word("the segment's name");
  s.flops_per_sample = in.field("flops", 0, INT64_MAX);
  if (in.accept("borrows")) {
    do {
      s.borrowed.push_back(in.small_integer("a parameter", 0, kMaxParameters - 1));
    } while (in.ok() && in.accept(","));
  }
  if (in.accept("stage")) s.stage = in.small_integer("a stage", 0, kMaxRanks - 1);
  if (in.accept("heads")) s.heads = in.small_integer("a number of heads", 0, INT_MAX);
  if (in.accept("sums")) s.sums.forward = read_sums(in);
  if (in.accept("gradient_sums")) s.sums.backward = read_sums(in);
  if (in.accept("loss_sums")) s.sums.loss = read_sums(in);
  s.splits_output = in.accept("splits_output");
  if (in.accept("positions")) s.positions = in.integer("a number of positions", 0, INT64_MAX);
  if (in.accept("keys")) s.keys = in.integer("a number of elements", 0, INT64_MAX);
  s.windows = read_windows(in, "window");
  s.split_windows = read_windows(in, "split_window");
  while (in.ok() && in.accept("states")) {
    if (s.state_crossings.size() == kMaxInnerSums) in.fail("too many exchanges of states");
    s.state_crossings.push_back(read_state_crossings(in));
  }
  if (in.accept("norms")) s.norms = read_sums(in);
  if (in.accept("spatial_all_reduce"))
    s.spatial_all_reduce = in.integer("a number of elements", 0, INT64_MAX);
  in.expect_line_end();
  return s;
}

ParameterShape read_parameter(TextReader& in) {
  ParameterShape p;
  p.name = in.word("the parameter's name");
  p.elements = in.field("elements", 0, INT64_MAX);
  in.expect("type");
  in.expect("=");
  p.dtype = read_enum<DType>(in, "an element type", kDTypes);
  if (in.accept("rows")) p.rows = in.integer("a number of rows", 1, INT64_MAX);
  p.trainable = !in.accept("frozen");
  p.sparse = in.accept("sparse");
  p.elsewhere = in.accept("elsewhere");
  if (in.accept("split")) {
    p.split.units = in.integer("a number of units", 1, INT64_MAX);
    if (in.accept("dim")) p.split.dim = in.small_integer("a dimension", 0, kMaxDimensions - 1);
    if (in.accept("blocks")) p.split.blocks = in.small_integer("a number of blocks", 1, INT_MAX);
    if (in.accept("counts")) p.split.counts = read_unit_counts(in, p.split.units);
  }
  in.expect_line_end();
  return p;
}

std::vector<Placement> read_placements(TextReader& in, const char* what) {
  constexpr std::array kAtRest = {Placement::kReplicate, Placement::kShard,    Placement::kShared,
                                  Placement::kRemote,    Placement::kDiverged, Placement::kStaged,
                                  Placement::kSplit};
  std::vector<Placement> out;
  if (in.at_end()) in.fail("expected 'state " + std::string(what) + "', found nothing");
  in.expect("state");
  in.expect(what);
  while (!in.at_line_end() && out.size() <= static_cast<std::size_t>(kMaxAxes)) {
    out.push_back(read_enum<Placement>(in, "a placement", kAtRest));
  }
  in.expect_line_end();
  return out;
}

/// A name follows a comma or the first one does; "over dp,host".
std::vector<std::string> read_axes_of_action(TextReader& in, const Mesh& mesh) {
  std::vector<std::string> axes;
  do {
    axes.push_back(in.word("an axis"));
    if (in.ok() && mesh.find(axes.back()) < 0) {
      in.fail_at_token("axis '" + axes.back() + "' is not in the mesh");
    }
  } while (in.ok() && in.accept(","));
  return axes;
}

Action read_action(TextReader& in, const StepPlan& plan) {
  Action a;
  a.kind = read_enum<ActionKind>(in, "an action",
                                 action_rows() | std::views::transform(&ActionRow::kind));
  const ActionRow& row = row_of(a.kind);
  if (row.range != RangeOf::kNothing) {
    a.range.first = in.small_integer("the first of its range", 0, kMaxParameters - 1);
    in.expect("-");
    a.range.last = in.small_integer("the last of its range", a.range.first, kMaxParameters - 1);
  }
  if (row.averages_slot && in.accept("slot")) {
    a.slot = in.small_integer("a slot of the optimizer", 0, kMaxSlots - 1);
  }
  if (row.micro_batch && in.accept("batch")) {
    a.micro_batch = in.small_integer("a micro-batch", 0, plan.micro_batches - 1);
  }
  if (in.accept("delay")) a.delay = in.small_integer("a number of steps", 1, kMaxDelay);
  if (in.accept("over")) a.axes = read_axes_of_action(in, plan.mesh);
  a.asynchronous = in.accept("async");
  if (row.has_codec() && in.accept("codec")) {
    a.codec = read_enum<Codec::Kind>(in, "a codec",
                                     codec_rows() | std::views::transform(&CodecRow::codec));
    if (row_of(a.codec).has_density) {
      in.expect(":");
      a.codec.density = in.real("a density");
    }
    if (row_of(a.codec).has_matrix_rank) {
      in.expect(":");
      a.codec.matrix_rank = in.small_integer("the rank of matrices", 1, kMaxExtent);
    }
  }
  if (row.reduces && in.accept("by")) a.algorithm = in.word("an algorithm");
  if (row.meets_neighbours() && in.accept("by"))
    a.algorithm = in.word("a topology", kMaxTopologyBytes);
  if (in.accept("every")) a.every = in.small_integer("a number of steps", 1, kMaxPeriod);
  if (row.staggered && in.accept("offset")) {
    a.offset = in.small_integer("a number of steps below those of its period", 1, kMaxPeriod - 1);
  }
  if (row.outer_updates() && in.accept("mixing")) a.mixing = in.real("a share");
  in.expect_line_end();
  return a;
}

void read_model(TextReader& in, ModelShape& model) {
  std::size_t parameters = 0;
  while (!in.at_end() && in.accept("segment")) {
    expect_number(in, model.segments.size());
    if (model.segments.size() == static_cast<std::size_t>(kMaxSegments)) {
      in.fail_at_token("too many segments");
    }
    SegmentShape s = read_segment(in);
    while (!in.at_end() && in.accept("parameter")) {
      expect_number(in, parameters);
      if (parameters++ == static_cast<std::size_t>(kMaxParameters)) {
        in.fail_at_token("too many parameters");
      }
      s.parameters.push_back(read_parameter(in));
    }
    model.segments.push_back(std::move(s));
  }
}

}  // namespace

std::string to_text(const Action& a) {
  std::string out(to_string(a.kind));
  if (row_of(a.kind).range != RangeOf::kNothing) {
    append_field(out, " ", a.range.first);
    append_field(out, "-", a.range.last);
  }
  if (a.slot >= 0) append_field(out, " slot ", a.slot);
  if (a.micro_batch != 0) append_field(out, " batch ", a.micro_batch);
  if (a.delay != 0) append_field(out, " delay ", a.delay);
  if (!a.axes.empty()) {
    out += " over ";
    append_list(out, a.axes);
  }
  if (a.asynchronous) out += " async";
  if (a.codec != Codec::kNone) out += " codec " + to_string(a.codec);
  if (!a.algorithm.empty()) {
    out += " by ";
    append_word(out, a.algorithm);
  }
  if (a.every != 1) append_field(out, " every ", a.every);
  if (a.offset != 0) append_field(out, " offset ", a.offset);
  if (a.mixing != 0) {
    out += " mixing ";
    append_real(out, a.mixing);
  }
  return out;
}

std::string describe(const StepPlan& p, std::size_t action) {
  std::string out = "action " + std::to_string(action) + " (" + to_text(p.actions[action]);
  const std::string names = names_of(p.model, p.actions[action]);
  return out + (names.empty() ? ")" : ": " + names + ")");
}

std::string to_text(const StepPlan& p) {
  std::string out = "step_plan v2 ";
  append_word(out, p.strategy);
  out += "\nmesh";
  append_axes(out, p.mesh);
  append_field(out, "step micro_batches=", p.micro_batches);
  if (p.logical_shards > 0) append_field(out, " logical_shards ", p.logical_shards);
  if (p.scaled_loss) out += " scaled_loss";
  if (p.clipped) out += " clipped";
  if (p.commits) out += " commits";
  if (p.chosen) out += " chosen";
  if (p.attention != AttentionForm::kRing)
    out += " attention " + std::string(to_string(p.attention));
  if (p.sequence_parallel) out += " sequence_parallel";
  if (p.newest_weights) out += " newest_weights";
  if (p.labels >= 0) append_field(out, " labels ", p.labels);
  out += '\n';
  std::size_t parameter = 0;
  for (std::size_t i = 0; i < p.model.segments.size(); ++i) {
    append_numbered(out, "segment ", i);
    append(out, p.model.segments[i], parameter);
  }
  append_placements(out, "state parameters", p.parameters);
  append_placements(out, "state frozen", p.frozen);
  append_placements(out, "state optimizer", p.optimizer_state);
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    const std::size_t begin = out.size();
    append_numbered(out, "action ", i);
    out += to_text(p.actions[i]);
    const std::string names = names_of(p.model, p.actions[i]);
    if (fits_comment(names)) {
      const std::size_t used = out.size() - begin;
      out.append(used < kActionColumn ? kActionColumn - used : 1, ' ');
      out += "# " + names;
    }
    out += '\n';
  }
  return out;
}

Result<StepPlan> parse_step_plan(std::string_view text) {
  TextReader in(text);
  in.expect_header("step_plan", kVersion);
  StepPlan p;
  p.strategy = in.word("the strategy");
  in.expect_line_end();
  if (in.at_end()) in.fail("expected 'mesh', found nothing");
  in.expect("mesh");
  p.mesh = read_axes(in);
  if (in.at_end()) in.fail("expected 'step', found nothing");
  in.expect("step");
  p.micro_batches = static_cast<int>(in.field("micro_batches", 1, kMaxActions));
  if (in.accept("logical_shards")) {
    p.logical_shards = in.small_integer("a number of shards", 1, kMaxShards);
  }
  p.scaled_loss = in.accept("scaled_loss");
  p.clipped = in.accept("clipped");
  p.commits = in.accept("commits");
  p.chosen = in.accept("chosen");
  if (in.accept("attention")) {
    p.attention = read_enum<AttentionForm>(in, "a form of attention", kAttentionForms);
  }
  p.sequence_parallel = in.accept("sequence_parallel");
  p.newest_weights = in.accept("newest_weights");
  if (in.accept("labels")) p.labels = in.small_integer("a rank", 0, kMaxRanks - 1);
  in.expect_line_end();
  read_model(in, p.model);
  p.parameters = read_placements(in, "parameters");
  p.frozen = read_placements(in, "frozen");
  p.optimizer_state = read_placements(in, "optimizer");
  while (!in.at_end()) {
    in.expect("action");
    expect_number(in, p.actions.size());
    p.actions.push_back(read_action(in, p));
    if (p.actions.size() > static_cast<std::size_t>(kMaxActions)) {
      in.fail_at_token("too many actions");
    }
  }
  if (!in.ok()) return in.status();
  return p;
}

}  // namespace stormo::plan
