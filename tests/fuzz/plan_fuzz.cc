// Texts of plans: what a parser takes is the text of one value, and what it refuses has a place.
#include <stormo/analysis/schedule/verify.h>
#include <stormo/base/check.h>
#include <stormo/comm/selection/selection.h>
#include <stormo/plan/schedule.h>
#include <stormo/plan/step_plan.h>
#include <stormo/plan/topology.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/built.h"
#include "tests/fuzz/fuzz.h"

namespace stormo::fuzz {
namespace {

constexpr int kSmall = 64;  // ranks and chunks of what is verified: its time grows with both

template <class Parsed, class Parse>
void check(const Parsed& parsed, Parse parse) {
  if (!parsed.ok()) {
    STORMO_CHECK(!parsed.status().message().empty(), "refused without a reason");
    return;
  }
  const auto again = parse(to_text(*parsed));
  STORMO_CHECK(again.ok() && *again == *parsed, "a value whose text is that of another");
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> all{to_text(plan::Topology{{2, 2}, {}, {}, 1e-10}),
                               to_text(comm::Selection::defaults())};
  for (const auto& file :
       std::filesystem::directory_iterator(testing::repository() / "tests/golden")) {
    if (file.path().extension() != ".txt") continue;
    std::ifstream in(file.path(), std::ios::binary);
    all.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return all;
}

}  // namespace stormo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stormo;
  const std::string_view text = fuzz::as_text(data, size);
  const auto schedule = plan::parse_schedule(text);
  fuzz::check(schedule, plan::parse_schedule);
  if (schedule.ok() && schedule->ranks <= fuzz::kSmall && schedule->chunks <= fuzz::kSmall) {
    static_cast<void>(analysis::verify(*schedule));
  }
  fuzz::check(plan::parse_step_plan(text), plan::parse_step_plan);
  fuzz::check(plan::parse_topology(text), plan::parse_topology);
  const auto selection = comm::parse_selection(text);
  if (selection.ok()) {
    STORMO_CHECK(comm::parse_selection(to_text(*selection)).ok(), "a text that is refused");
  }
  return 0;
}
