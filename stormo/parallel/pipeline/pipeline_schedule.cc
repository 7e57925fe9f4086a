#include <stormo/parallel/pipeline/pipeline_schedule.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

namespace stormo::parallel {
namespace {

using Kind = StageStep::Kind;

/// As many micro-batches as keep all stages busy.
Status at_least(const std::string& name, const PipelineShape& shape, int micro_batches) {
  if (shape.micro_batches >= micro_batches) return {};
  return invalid_argument("schedule '" + name + "' keeps " + std::to_string(shape.stages) +
                          " stages busy with at least " + std::to_string(micro_batches) +
                          " micro-batches, not " + std::to_string(shape.micro_batches) +
                          "; use train.micro_batches=" + std::to_string(micro_batches) +
                          ", or use fewer stages");
}

/// `first` forwards, then a backward after each forward, then the backwards that are left.
std::vector<StageStep> one_after_the_other(const std::vector<StageStep>& forwards,
                                           const std::vector<StageStep>& backwards,
                                           std::size_t first) {
  first = std::min(first, forwards.size());
  std::vector<StageStep> out(forwards.begin(),
                             forwards.begin() + static_cast<std::ptrdiff_t>(first));
  for (std::size_t i = 0; i < backwards.size(); ++i) {
    out.push_back(backwards[i]);
    if (first + i < forwards.size()) out.push_back(forwards[first + i]);
  }
  return out;
}

/// Of a stage with one chunk.
std::vector<StageStep> of_all(Kind kind, int micro_batches) {
  std::vector<StageStep> out;
  for (int m = 0; m < micro_batches; ++m) out.push_back({.kind = kind, .micro_batch = m});
  return out;
}

/// Groups of p micro-batches pass one chunk after the other.
std::vector<StageStep> of_all_chunks(Kind kind, const PipelineShape& shape) {
  std::vector<StageStep> out;
  for (int first = 0; first < shape.micro_batches; first += shape.stages) {
    for (int c = 0; c < shape.chunks; ++c) {
      const int chunk = kind == Kind::kForward ? c : shape.chunks - 1 - c;
      for (int m = first; m < first + shape.stages; ++m) {
        out.push_back({.kind = kind, .micro_batch = m, .chunk = chunk});
      }
    }
  }
  return out;
}

/// A backward after each forward, behind as many forwards as `first` says of the number of stages
/// from this one to the last.
PipelineSchedule begins_with(const std::string& name, int (*first)(int left)) {
  return {
      .name = name,
      .check = [name](const PipelineShape& shape) { return at_least(name, shape, shape.stages); },
      .order =
          [first](const PipelineShape& shape, int stage) {
            return one_after_the_other(of_all(Kind::kForward, shape.micro_batches),
                                       of_all(Kind::kBackward, shape.micro_batches),
                                       static_cast<std::size_t>(first(shape.stages - stage)));
          }};
}

/// A backward after each forward, of micro-batches that were computed p-1-s before it, which may be
/// of earlier steps.
std::vector<StageStep> without_flush(const PipelineShape& shape, int stage) {
  const int behind = shape.stages - 1 - stage;
  std::vector<StageStep> out;
  for (int m = 0; m < shape.micro_batches; ++m) {
    out.push_back({.kind = Kind::kForward, .micro_batch = m});
    const int late = std::max(behind - m, 0);
    const int delay = (late + shape.micro_batches - 1) / shape.micro_batches;
    out.push_back({.kind = Kind::kBackward,
                   .micro_batch = m - behind + delay * shape.micro_batches,
                   .delay = delay});
  }
  return out;
}

/// Steps of one stage, in which the micro-batches of each chunk and kind follow each other.
class StepList {
 public:
  void add(Kind kind, int chunk, int times = 1) {
    for (int i = 0; i < times; ++i) {
      const int micro_batch = counts_[{kind, chunk}]++;
      steps_.push_back({.kind = kind, .micro_batch = micro_batch, .chunk = chunk});
    }
  }
  int count(Kind kind, int chunk) { return counts_[{kind, chunk}]; }
  std::vector<StageStep> take() { return std::move(steps_); }

 private:
  std::vector<StageStep> steps_;
  std::map<std::pair<Kind, int>, int> counts_;
};

/// The backward of the first chunk, both steps at once. On stage 0 that is one step.
void first_chunk_backward(StepList& out, int stage) {
  if (stage == 0) return out.add(Kind::kBackward, 0);
  out.add(Kind::kBackwardInput, 0);
  out.add(Kind::kBackwardWeight, 0);
}

/// The order of zero_bubble_v(): until both chunks have enough to do, then one of each in turn,
/// then the backwards that are left.
std::vector<StageStep> order_of_v(const PipelineShape& shape, int stage) {
  const int left = shape.stages - stage;
  StepList out;
  const auto second_chunk = [&] {
    out.add(Kind::kForward, 1);
    out.add(Kind::kBackwardInput, 1);
    out.add(Kind::kBackwardWeight, 1);
  };
  out.add(Kind::kForward, 0, 2 * left - 1);
  for (int i = 0; i < stage; ++i) {
    out.add(Kind::kForward, 1);
    out.add(Kind::kForward, 0);
  }
  for (int i = 0; i < left; ++i) second_chunk();
  while (out.count(Kind::kForward, 1) < shape.micro_batches) {
    if (out.count(Kind::kForward, 0) < shape.micro_batches) out.add(Kind::kForward, 0);
    first_chunk_backward(out, stage);
    second_chunk();
  }
  for (int i = 0; i < stage; ++i) {
    out.add(Kind::kBackwardInput, 0);
    out.add(Kind::kBackwardInput, 1);
  }
  for (int i = 0; i < left; ++i) first_chunk_backward(out, stage);
  for (const int chunk : {1, 0}) {
    if (stage == 0 && chunk == 0) continue;
    out.add(Kind::kBackwardWeight, chunk,
            shape.micro_batches - out.count(Kind::kBackwardWeight, chunk));
  }
  return out.take();
}

}  // namespace

Status check(const PipelineSchedule& schedule, const PipelineShape& shape) {
  const int fitting = std::clamp(shape.chunks, schedule.least_chunks, schedule.most_chunks);
  if (fitting == shape.chunks) return schedule.check(shape);
  const bool exactly = schedule.least_chunks == schedule.most_chunks;
  const std::string chunks = fitting == 1 ? "1 chunk" : std::to_string(fitting) + " chunks";
  return invalid_argument("schedule '" + schedule.name + "' has " + (exactly ? "" : "at least ") +
                          chunks + " of segments on each stage, not " +
                          std::to_string(shape.chunks) + "; set chunks=" + std::to_string(fitting) +
                          (shape.chunks > fitting ? ", or use 'interleaved'" : ""));
}

PipelineSchedule gpipe() {
  return {.name = "gpipe",
          .check = [](const PipelineShape&) { return Status(); },
          .order =
              [](const PipelineShape& shape, int) {
                return one_after_the_other(of_all(Kind::kForward, shape.micro_batches),
                                           of_all(Kind::kBackward, shape.micro_batches),
                                           static_cast<std::size_t>(shape.micro_batches));
              }};
}

PipelineSchedule one_forward_one_backward() {
  return begins_with("1f1b", [](int left) { return left; });
}

PipelineSchedule eager_1f1b() {
  return begins_with("eager_1f1b", [](int left) { return 2 * left - 1; });
}

PipelineSchedule interleaved() {
  return {.name = "interleaved",
          .least_chunks = 2,
          .most_chunks = std::numeric_limits<int>::max(),
          .check = [](const PipelineShape& shape) -> Status {
            if (shape.micro_batches % shape.stages == 0) return {};
            const int below = shape.micro_batches / shape.stages * shape.stages;
            return invalid_argument(
                "schedule 'interleaved' has groups of as many micro-batches as stages, " +
                std::to_string(shape.stages) + "; " + std::to_string(shape.micro_batches) +
                " micro-batches are no multiple: use train.micro_batches=" +
                (below > 0 ? std::to_string(below) + " or " : std::string()) +
                std::to_string(below + shape.stages));
          },
          .order =
              [](const PipelineShape& shape, int stage) {
                const int first =
                    (shape.stages - stage - 1) * 2 + (shape.chunks - 1) * shape.stages + 1;
                return one_after_the_other(of_all_chunks(Kind::kForward, shape),
                                           of_all_chunks(Kind::kBackward, shape),
                                           static_cast<std::size_t>(first));
              }};
}

PipelineSchedule zero_bubble() {
  return {
      .name = "zero_bubble",
      .check =
          [](const PipelineShape& shape) { return at_least("zero_bubble", shape, shape.stages); },
      .order =
          [](const PipelineShape& shape, int stage) {
            StepList out;
            out.add(Kind::kForward, 0, shape.stages - stage);
            // stage s is s second steps behind
            for (int m = 0; m < shape.micro_batches; ++m) {
              out.add(stage == 0 ? Kind::kBackward : Kind::kBackwardInput, 0);
              if (stage > 0 && m >= stage) out.add(Kind::kBackwardWeight, 0);
              if (out.count(Kind::kForward, 0) < shape.micro_batches) out.add(Kind::kForward, 0);
            }
            if (stage > 0) out.add(Kind::kBackwardWeight, 0, std::min(stage, shape.micro_batches));
            return out.take();
          }};
}

PipelineSchedule zero_bubble_v() {
  return {.name = "zero_bubble_v",
          .least_chunks = 2,
          .most_chunks = 2,
          .chunk_order = ChunkOrder::kV,
          .check =
              [](const PipelineShape& shape) {
                return at_least("zero_bubble_v", shape, 2 * shape.stages - 1);
              },
          .order = [](const PipelineShape& shape, int stage) { return order_of_v(shape, stage); }};
}

PipelineSchedule pipedream() {
  return {.name = "pipedream",
          .overlap = 0,
          .check = [](const PipelineShape&) { return Status(); },
          .order = without_flush};
}

PipelineSchedule pipedream_2bw() {
  return {
      .name = "pipedream_2bw",
      .overlap = 1,
      .check =
          [](const PipelineShape& shape) { return at_least("pipedream_2bw", shape, shape.stages); },
      .order = without_flush};
}

PipelineSchedule delayed_gradients() {
  return {.name = "ddg",
          .overlap = 0,
          .check = [](const PipelineShape& shape) -> Status {
            if (shape.micro_batches == 1) return {};
            return invalid_argument(
                "schedule 'ddg' updates after each batch, which is not divided into micro-batches: "
                "leave out train.micro_batches=" +
                std::to_string(shape.micro_batches) + ", or use 'pipedream'");
          },
          .order = without_flush};
}

int part_of(ChunkOrder order, const PipelineShape& shape, int stage, int chunk) {
  const bool back = order == ChunkOrder::kV && chunk == 1;
  return chunk * shape.stages + (back ? shape.stages - 1 - stage : stage);
}

const std::vector<std::string>& pipeline_schedule_names() {
  static const std::vector<std::string> names = {"gpipe",       "1f1b",          "eager_1f1b",
                                                 "interleaved", "zero_bubble",   "zero_bubble_v",
                                                 "pipedream",   "pipedream_2bw", "ddg"};
  return names;
}

Result<PipelineSchedule> pipeline_schedule(std::string_view name) {
  for (PipelineSchedule s :
       {gpipe(), one_forward_one_backward(), eager_1f1b(), interleaved(), zero_bubble(),
        zero_bubble_v(), pipedream(), pipedream_2bw(), delayed_gradients()}) {
    if (s.name == name) return s;
  }
  std::string known;
  for (const std::string& n : pipeline_schedule_names()) known += (known.empty() ? "" : ", ") + n;
  return invalid_argument("there is no pipeline schedule '" + std::string(name) + "'; there are " +
                          known);
}

}  // namespace stormo::parallel
