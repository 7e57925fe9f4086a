#include <gtest/gtest.h>

#include <sstream>

#include <stormo/observe/json_lines.h>
#include <stormo/observe/tee.h>
#include <stormo/observe/trace_sink.h>

namespace stormo::observe {
namespace {

TEST(TeeObserver, EveryObserverSeesEveryRecord) {
  std::ostringstream first, second, alone;
  JsonObserver a(first), b(second), c(alone);
  TeeObserver tee({&a, &b});
  for (RunObserver* o : {static_cast<RunObserver*>(&tee), static_cast<RunObserver*>(&c)}) {
    o->on_start({});
    o->on_sharding({});
    o->on_step({});
    o->on_eval({});
    o->on_end({});
  }
  EXPECT_EQ(first.str(), alone.str());
  EXPECT_EQ(second.str(), alone.str());
  EXPECT_FALSE(alone.str().empty());
}

TEST(TeeSink, EverySinkSeesEveryEvent) {
  TraceSink a(0, "h"), b(0, "h");
  TeeSink tee({&a, &b});
  tee.record({.lane = Lane::kData, .name = "load"});
  EXPECT_EQ(a.snapshot().events.size(), 1u);
  EXPECT_EQ(b.snapshot().events.size(), 1u);
}

}  // namespace
}  // namespace stormo::observe
