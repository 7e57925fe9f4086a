#include <cli/completion.h>

#include <fmt/format.h>

namespace stormo::cli {
namespace {

/// One case per command: what may follow it.
void append_cases(const CLI::App& app, const std::string& path, std::string& cases) {
  std::string words;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (sub->get_group().empty()) continue;
    words += sub->get_name() + " ";
    append_cases(*sub, path + " " + sub->get_name(), cases);
  }
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) words += "--" + name + " ";
  if (!words.empty()) words.pop_back();
  cases += fmt::format("    '{}') words='{}' ;;\n", path, words);
}

}  // namespace

std::string bash_completion(const CLI::App& app) {
  std::string cases;
  append_cases(app, app.get_name(), cases);
  return fmt::format(R"(# bash completion for {0}; to use it now: source <({0} completion bash)
_{0}() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" command='{0}' word words=''
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$word" in
      --) COMPREPLY=($(compgen -o default -- "$current")); return ;;
      -*) ;;
      *) case "$command $word" in
{1}         esac ;;
    esac
  done
  case "$command" in
{2}  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _{0} {0}
)",
                     app.get_name(),
                     [&] {
                       std::string descend;
                       for (std::size_t at = 0;
                            (at = cases.find("    '", at)) != std::string::npos;) {
                         const std::size_t end = cases.find("')", at);
                         const std::string path = cases.substr(at + 5, end - at - 5);
                         if (path != app.get_name())
                           descend += fmt::format("        '{0}') command='{0}' ;;\n", path);
                         at = end;
                       }
                       return descend;
                     }(),
                     cases);
}

}  // namespace stormo::cli
