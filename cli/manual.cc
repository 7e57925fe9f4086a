#include <cli/manual.h>

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include <cli/help.h>
#include <stormo/base/version.h>

namespace stormo::cli {
namespace {

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\\\";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

/// Lines that begin with a dot or an apostrophe would be requests.
std::string as_text(const std::string& text) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && (line.front() == '.' || line.front() == '\'')) out += "\\&";
    out += escaped(line) + "\n";
  }
  return out;
}

std::string as_written(const std::string& text) { return ".nf\n" + as_text(text) + ".fi\n"; }

std::string page_name(std::string path) {
  std::ranges::replace(path, ' ', '-');
  return path;
}

/// The help of a command without its examples, which come first there.
std::string reference(const CLI::App& app, const std::string& path) {
  std::string help = app.get_formatter()->make_help(&app, path, CLI::AppFormatMode::Normal);
  const std::string examples = app.get_footer();
  if (!examples.empty() && help.starts_with(examples)) help.erase(0, examples.size());
  help.erase(0, std::min(help.find_first_not_of('\n'), help.size()));
  return help;
}

ManualPage page_of(const CLI::App& app, const std::string& path,
                   const std::vector<const CLI::App*>& inner) {
  const std::string name = page_name(path);
  const std::string what = app.get_description();
  std::string text = fmt::format(".TH {} 1 \"\" \"Stormo {}\" \"Stormo\"\n", name, kVersion);
  text +=
      fmt::format(".SH NAME\n{} \\- {}\n", escaped(name), escaped(what.substr(0, what.find('\n'))));
  text += ".SH REFERENCE\n" + as_written(reference(app, path));
  if (!app.get_footer().empty()) text += ".SH EXAMPLES\n" + as_written(app.get_footer());
  if (inner.empty()) return {name + ".1", text};
  text += ".SH SEE ALSO\n";
  for (const CLI::App* sub : inner) {
    text += fmt::format(".BR {}\\-{} (1){}\n", escaped(name), escaped(sub->get_name()),
                        sub == inner.back() ? "" : ",");
  }
  return {name + ".1", text};
}

void append_pages(const CLI::App& app, const std::string& path, std::vector<ManualPage>& out) {
  const std::vector<const CLI::App*> inner = visible_commands(app);
  out.push_back(page_of(app, path, inner));
  for (const CLI::App* sub : inner) append_pages(*sub, path + " " + sub->get_name(), out);
}

}  // namespace

std::vector<ManualPage> manual_pages(const CLI::App& app) {
  std::vector<ManualPage> out;
  append_pages(app, app.get_name(), out);
  return out;
}

}  // namespace stormo::cli
