#include <gtest/gtest.h>

#include <sstream>

#include <stormo/observe/json_lines.h>
#include <stormo/observe/tee.h>

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
    o->on_progress({});
    o->on_eval({});
    o->on_save_failed({});
    o->on_warning({});
    o->on_slow_ranks({.changes = {{}}});
    o->on_end({});
    o->on_error({});
  }
  EXPECT_EQ(first.str(), alone.str());
  EXPECT_EQ(second.str(), alone.str());
  EXPECT_FALSE(alone.str().empty());
}

}  // namespace
}  // namespace stormo::observe
