#include <stormo/parallel/pipeline_schedule.h>

#include <algorithm>
#include <string>
#include <utility>

namespace stormo::parallel {
namespace {

using Kind = StageStep::Kind;

Status one_chunk(const PipelineShape& shape, const std::string& name) {
  if (shape.chunks == 1) return {};
  return invalid_argument("schedule '" + name + "' has one chunk of segments on each stage, not " +
                          std::to_string(shape.chunks) + "; use 'interleaved'");
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
  return {.name = name,
          .check = [name](const PipelineShape& shape) -> Status {
            STORMO_RETURN_IF_ERROR(one_chunk(shape, name));
            if (shape.micro_batches >= shape.stages) return {};
            return invalid_argument(
                "schedule '" + name + "' keeps " + std::to_string(shape.stages) +
                " stages busy with as many micro-batches, not " +
                std::to_string(shape.micro_batches) + "; raise micro_batches, or use fewer stages");
          },
          .order =
              [first](const PipelineShape& shape, int stage) {
                return one_after_the_other(of_all(Kind::kForward, shape.micro_batches),
                                           of_all(Kind::kBackward, shape.micro_batches),
                                           static_cast<std::size_t>(first(shape.stages - stage)));
              }};
}

}  // namespace

PipelineSchedule gpipe() {
  return {.name = "gpipe",
          .check = [](const PipelineShape& shape) { return one_chunk(shape, "gpipe"); },
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
          .check = [](const PipelineShape& shape) -> Status {
            if (shape.chunks < 2) {
              return invalid_argument(
                  "schedule 'interleaved' has at least 2 chunks of segments on each stage; set "
                  "chunks, or use '1f1b'");
            }
            if (shape.micro_batches % shape.stages == 0) return {};
            const int below = shape.micro_batches / shape.stages * shape.stages;
            return invalid_argument(
                "schedule 'interleaved' has groups of as many micro-batches as stages, " +
                std::to_string(shape.stages) + "; " + std::to_string(shape.micro_batches) +
                " micro-batches are no multiple: use " +
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

const std::vector<std::string>& pipeline_schedule_names() {
  static const std::vector<std::string> names = {"gpipe", "1f1b", "eager_1f1b", "interleaved"};
  return names;
}

Result<PipelineSchedule> pipeline_schedule(std::string_view name) {
  for (PipelineSchedule s : {gpipe(), one_forward_one_backward(), eager_1f1b(), interleaved()}) {
    if (s.name == name) return s;
  }
  std::string known;
  for (const std::string& n : pipeline_schedule_names()) known += (known.empty() ? "" : ", ") + n;
  return invalid_argument("there is no pipeline schedule '" + std::string(name) + "'; there are " +
                          known);
}

}  // namespace stormo::parallel
