#include <stormo/observe/data_text.h>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include <stormo/base/printable.h>

namespace stormo::observe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kShownClasses = 12;

std::string many(std::int64_t n, std::string_view what, std::string_view plural) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : plural);
}

}  // namespace

std::string data_text(std::span<const DataRecord> data) {
  std::string text;
  for (const DataRecord& r : data) {
    text += fmt::format("{}: {}", r.split, many(r.samples, "sample", "s"));
    if (r.classes) text += " of " + many(*r.classes, "class", "es");
    if (r.files) text += " in " + many(*r.files, "file", "s");
    for (const DataRecord::LeftOut& l : r.left_out) {
      text += fmt::format("{}{} {} ({})", &l == r.left_out.data() ? "; left out: " : ", ", l.count,
                          printable_line(l.why), printable_line(l.first));
    }
    text += "\n";
  }
  return text;
}

std::string data_json(std::span<const DataRecord> data) {
  Json list = Json::array();
  for (const DataRecord& r : data) {
    Json one = {{"split", r.split}, {"samples", r.samples}};
    if (r.classes) one["classes"] = *r.classes;
    if (r.files) one["files"] = *r.files;
    one["left_out"] = Json::array();
    for (const DataRecord::LeftOut& l : r.left_out) {
      one["left_out"].push_back({{"why", l.why}, {"count", l.count}, {"first", l.first}});
    }
    list.push_back(std::move(one));
  }
  return list.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string confusion_text(const EvalRecord& r) {
  if (r.confusion.size() > kShownClasses) {
    return fmt::format("confusion matrix of {} classes: see --json\n", r.confusion.size());
  }
  constexpr std::string_view kCorner = "is \\ predicted";
  std::vector<std::string> names;
  std::size_t width = 8, front = kCorner.size();
  for (const std::string& name : r.classes) {
    names.push_back(printable_line(name));
    width = std::max(width, names.back().size() + 2);
    front = std::max(front, names.back().size());
  }
  std::string text = fmt::format("{:<{}}", kCorner, front);
  for (const std::string& name : names) text += fmt::format("{:>{}}", name, width);
  text += "\n";
  for (std::size_t c = 0; c < r.confusion.size(); ++c) {
    text += fmt::format("{:<{}}", names[c], front);
    for (const std::int64_t n : r.confusion[c]) text += fmt::format("{:>{}}", n, width);
    text += "\n";
  }
  return text;
}

}  // namespace stormo::observe
