// The files of monitoring/ and the page that describes them, against the table of metrics.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include <stormo/observe/metrics/metric_table.h>

#include "tests/unit/observe/full_status.h"

namespace stormo::observe {
namespace {

const std::string kRoot = STORMO_SOURCE_FOLDER;

std::string read(const std::string& path) {
  std::ifstream file(kRoot + "/" + path);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

using Names = std::set<std::string>;

/// What can stand in a query, with the labels that it has.
std::map<std::string, Names> shown_names() {
  StatusObserver observer;
  test::tell_all(observer);
  const auto run = observer.status();
  const CostRecord cost = test::full_cost();
  std::map<std::string, Names> out;
  for (const MetricRow& row : metric_table()) {
    MetricValues values;
    row.values({*run, {}, std::chrono::steady_clock::now(), &cost}, values);
    const std::string name(row.name);
    if (row.kind == MetricKind::kHistogram) {
      out[name + "_bucket"] = {"le"};
      out[name + "_sum"] = out[name + "_count"] = {};
      continue;
    }
    for (const auto& [label, text] : values.samples.front().labels)
      out[name].insert(std::string(label));
    out.try_emplace(name);
  }
  return out;
}

/// Every metric in a text, and the labels in the braces behind it, must be shown.
void check_queries(const std::string& text, Names& used) {
  static const std::regex metric(R"(\b(stormo_[a-z0-9_]+)(\{[^}]*\})?)");
  static const std::regex label(R"re(([a-z_]+) *=~?)re");
  const std::map<std::string, Names> shown = shown_names();
  for (std::sregex_iterator m(text.begin(), text.end(), metric), end; m != end; ++m) {
    const std::string name = (*m)[1], braces = (*m)[2];
    used.insert(name);
    ASSERT_TRUE(shown.contains(name)) << name;
    for (std::sregex_iterator l(braces.begin(), braces.end(), label); l != end; ++l) {
      const std::string named = (*l)[1];
      EXPECT_TRUE(named == "instance" || shown.at(name).contains(named)) << name << ": " << named;
    }
  }
}

TEST(MonitoringFiles, TheDashboardAsksForMetricsThatThereAre) {
  const nlohmann::json board = nlohmann::json::parse(read("monitoring/grafana.json"));
  Names used;
  std::set<int> ids;
  for (const auto& panel : board.at("panels")) {
    EXPECT_TRUE(ids.insert(panel.at("id").get<int>()).second) << panel.at("title");
    EXPECT_FALSE(panel.at("targets").empty()) << panel.at("title");
    for (const auto& target : panel.at("targets")) {
      check_queries(target.at("expr").get<std::string>(), used);
    }
  }
  for (const auto& variable : board.at("templating").at("list")) {
    check_queries(variable.at("query").get<std::string>(), used);
  }
  EXPECT_GE(used.size(), 18u);
}

TEST(MonitoringFiles, AlertsAskForMetricsThatThereAreAndAreDescribed) {
  const std::string rules = read("monitoring/alerts.yml");
  Names used;
  check_queries(rules, used);
  EXPECT_GE(used.size(), 6u);
  const std::string page = read("docs/monitoring.md"), tests = read("monitoring/alerts_test.yml");
  static const std::regex alert(R"(alert: (\w+))");
  int alerts = 0;
  for (std::sregex_iterator m(rules.begin(), rules.end(), alert), end; m != end; ++m, ++alerts) {
    const std::string name = (*m)[1];
    EXPECT_NE(page.find("`" + name + "`"), std::string::npos) << name;
    EXPECT_NE(tests.find("alertname: " + name), std::string::npos) << name;
  }
  EXPECT_GE(alerts, 5);
}

TEST(MonitoringFiles, ThePageListsTheMetricsOfTheTable) {
  const std::string page = read("docs/monitoring.md");
  static const std::regex row(
      R"re(\| `(stormo_[a-z0-9_]+)(?:\{[^}]*\})?` \| (\w+) \| ([^|]*) \|)re");
  std::map<std::string, std::pair<std::string, std::string>> listed;
  for (std::sregex_iterator m(page.begin(), page.end(), row), end; m != end; ++m) {
    listed[(*m)[1]] = {(*m)[2], (*m)[3]};
  }
  for (const MetricRow& metric : metric_table()) {
    const auto found = listed.find(std::string(metric.name));
    ASSERT_NE(found, listed.end()) << metric.name;
    const char* const kinds[] = {"counter", "gauge", "histogram", "info"};
    EXPECT_EQ(found->second.first, kinds[static_cast<int>(metric.kind)]) << metric.name;
    EXPECT_EQ(found->second.second, metric.help) << metric.name;
  }
  EXPECT_EQ(listed.size(), metric_table().size());
}

TEST(MonitoringFiles, PromtoolAcceptsTheRulesAndTheirTests) {
  if (std::system("promtool --version >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "set-up: promtool is not there";
  }
  const std::string folder = kRoot + "/monitoring/";
  EXPECT_EQ(std::system(("promtool check config " + folder + "prometheus.yml").c_str()), 0);
  EXPECT_EQ(std::system(("promtool test rules " + folder + "alerts_test.yml").c_str()), 0);
}

}  // namespace
}  // namespace stormo::observe
