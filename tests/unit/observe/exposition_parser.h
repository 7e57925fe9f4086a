#pragma once

#include <cmath>
#include <cstdlib>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace stormo::observe::test {

/// A reader of Prometheus' text form and of OpenMetrics, written from their specifications. It
/// throws at whatever they do not allow.
class ExpositionParser {
 public:
  struct Family {
    std::string type, help, unit;
    std::map<std::string, double> samples;  ///< by name and labels, as they are written
  };
  using Families = std::map<std::string, Family>;

  static Families parse(const std::string& text, bool open_metrics) {
    ExpositionParser parser(open_metrics);
    need(text.empty() || text.back() == '\n', "the last line has no end");
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) parser.take(line);
    parser.close();
    need(parser.ended_ == open_metrics, "# EOF ends OpenMetrics, and nothing else");
    return parser.families_;
  }

 private:
  explicit ExpositionParser(bool open_metrics) : open_metrics_(open_metrics) {}

  static void need(bool holds, const std::string& what) {
    if (!holds) throw std::runtime_error(what);
  }

  void take(const std::string& line) {
    static const std::regex comment(R"(# (HELP|TYPE|UNIT) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+))");
    need(!ended_, "text after # EOF");
    if (line == "# EOF") {
      ended_ = true;
      return;
    }
    std::smatch m;
    if (!line.starts_with('#')) return take_sample(line);
    need(std::regex_match(line, m, comment), "not a comment of a metric: " + line);
    if (m[2] != name_) open(m[2]);
    need(family_->samples.empty(), "what describes a metric comes before it: " + line);
    std::string& field = m[1] == "HELP"   ? family_->help
                         : m[1] == "TYPE" ? family_->type
                                          : family_->unit;
    need(field.empty(), "said twice: " + line);
    field = m[3];
    need(m[1] != "UNIT" || open_metrics_, "Prometheus knows no UNIT");
    need(m[1] != "UNIT" || name_.ends_with("_" + field), "a unit that is not in the name: " + line);
    static const std::set<std::string> plain = {"counter", "gauge", "histogram", "summary",
                                                "untyped"};
    static const std::set<std::string> open = {"counter", "gauge", "histogram", "summary",
                                               "unknown", "info",  "stateset",  "gaugehistogram"};
    need(m[1] != "TYPE" || (open_metrics_ ? open : plain).contains(field), "no type: " + line);
  }

  void open(const std::string& name) {
    close();
    need(!families_.contains(name), "not in one piece: " + name);
    name_ = name;
    family_ = &families_[name];
  }

  void take_sample(const std::string& line) {
    static const std::regex sample(
        R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\[\\"n])*",?)*)\})? (\S+))re");
    std::smatch m;
    need(std::regex_match(line, m, sample), "no sample: " + line);
    need(family_ != nullptr && m[1].str().starts_with(name_), "of no metric: " + line);
    const std::string ending = m[1].str().substr(name_.size());
    need(endings().contains(ending), "the ending of another type: " + line);
    need(!m[3].str().ends_with(','), "a comma too many: " + line);
    need(family_->samples.emplace(m[1].str() + m[2].str(), value(m[4])).second, "twice: " + line);
  }

  std::set<std::string> endings() const {
    if (family_->type == "histogram") return {"_bucket", "_sum", "_count"};
    if (open_metrics_ && family_->type == "counter") return {"_total"};
    if (open_metrics_ && family_->type == "info") return {"_info"};
    return {""};
  }

  static double value(const std::string& text) {
    if (text == "NaN") return std::nan("");
    if (text == "+Inf" || text == "-Inf") return text[0] == '-' ? -HUGE_VAL : HUGE_VAL;
    static const std::regex number(R"(-?\d+(\.\d+)?(e[+-]?\d+)?)");
    need(std::regex_match(text, number), "no number: " + text);
    return std::strtod(text.c_str(), nullptr);
  }

  void close() {
    if (family_ == nullptr) return;
    need(!family_->help.empty() && !family_->type.empty(), "without help or type: " + name_);
    need(!family_->samples.empty(), "without samples: " + name_);
    const bool counter = family_->type == "counter";
    need(open_metrics_ || !counter || name_.ends_with("_total"), "a counter's name: " + name_);
    for (const auto& [sample, value] : family_->samples) {
      need(!counter || value >= 0, "a counter below zero: " + sample);
    }
    if (family_->type == "histogram") check_histogram();
  }

  void check_histogram() const {
    std::map<double, double> buckets;
    static const std::regex bound(R"re(.*_bucket\{le="(\+Inf|\d+\.\d+(?:e-?\d+)?)"\})re");
    for (const auto& [sample, value] : family_->samples) {
      std::smatch m;
      if (std::regex_match(sample, m, bound)) {
        buckets[m[1] == "+Inf" ? HUGE_VAL : std::strtod(m[1].str().c_str(), nullptr)] = value;
      } else {
        need(sample == name_ + "_sum" || sample == name_ + "_count", "no bucket: " + sample);
      }
    }
    need(buckets.contains(HUGE_VAL), "no bucket for the rest");
    need(buckets.at(HUGE_VAL) == family_->samples.at(name_ + "_count"), "count and last bucket");
    double before = 0;
    for (const auto& [le, count] : buckets) {
      need(count >= before, "buckets are not cumulative");
      before = count;
    }
  }

  bool open_metrics_, ended_ = false;
  Families families_;
  std::string name_;
  Family* family_ = nullptr;
};

}  // namespace stormo::observe::test
