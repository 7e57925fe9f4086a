#include <cli/help.h>

#include <fmt/format.h>

#include <stormo/base/units.h>

namespace stormo::cli {
namespace {

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& n : option->get_lnames()) names.push_back("--" + n);
    for (const std::string& n : option->get_snames()) names.push_back("-" + n);
  }
  return names;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& known) {
  const std::string_view nearest = nearest_match(word, known);
  return nearest.empty() ? std::string() : fmt::format("; did you mean '{}'?", nearest);
}

}  // namespace

std::vector<const CLI::App*> visible_commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); });
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name,
                                     CLI::AppFormatMode mode) const {
  const std::string examples = app->get_footer();
  if (mode != CLI::AppFormatMode::Normal || examples.empty())
    return CLI::Formatter::make_help(app, std::move(name), mode);
  const std::string page = CLI::Formatter::make_help(app, std::move(name), mode);
  const std::string with_footer = make_footer(app);
  const std::size_t at = page.rfind(with_footer);
  return examples + "\n\n" + (at == std::string::npos ? page : page.substr(0, at));
}

std::string unknown_command(const CLI::App& app, std::span<char* const> words) {
  const CLI::App* at = &app;
  std::string path = app.get_name();
  for (const std::string word : words) {
    const auto subcommands = at->get_subcommands([](const CLI::App*) { return true; });
    if (subcommands.empty() || word.empty() || word.front() == '-') return {};
    const CLI::App* next = nullptr;
    std::vector<std::string> names;
    for (const CLI::App* sub : subcommands) {
      if (sub->get_name() == word) next = sub;
      if (!sub->get_group().empty()) names.push_back(sub->get_name());
    }
    if (next == nullptr)
      return fmt::format("'{}' is no command{}\n'{} --help' lists them all", word,
                         suggestion(word, names), path);
    at = next;
    path += " " + word;
  }
  return {};
}

std::string unknown_arguments(const CLI::App& app) {
  const CLI::App* at = &app;
  std::string path = app.get_name();
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    path += " " + at->get_name();
  }
  std::string text;
  for (const std::string& word : at->remaining()) {
    const std::string name = word.substr(0, word.find('='));
    text += fmt::format("{}'{}' is no argument of '{}'{}", text.empty() ? "" : "\n", word, path,
                        suggestion(name, option_names(*at)));
  }
  if (!text.empty()) text += fmt::format("\n'{} --help' explains them", path);
  return text;
}

}  // namespace stormo::cli
