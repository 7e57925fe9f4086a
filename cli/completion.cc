#include <cli/completion.h>

#include <fmt/format.h>

#include <cli/help.h>

namespace stormo::cli {
namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

void append_words(const CLI::App& app, const std::string& path, std::vector<CommandWords>& out) {
  CommandWords words{.path = path, .commands = {}, .options = {}};
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames())
      words.options.push_back({"--" + name, first_line(option->get_description())});
  }
  const auto inner = visible_commands(app);
  for (const CLI::App* sub : inner)
    words.commands.push_back({sub->get_name(), first_line(sub->get_description())});
  out.push_back(std::move(words));
  for (const CLI::App* sub : inner) append_words(*sub, path + " " + sub->get_name(), out);
}

/// The same lines for bash and zsh: which command the words so far are, and what may follow each.
struct Cases {
  std::string descend, words;
};

Cases cases_of(const std::vector<CommandWords>& all) {
  Cases out;
  for (const CommandWords& c : all) {
    if (&c != &all.front()) out.descend += fmt::format("        '{0}') command='{0}' ;;\n", c.path);
    std::string words;
    for (const auto* kind : {&c.commands, &c.options}) {
      for (const CommandWords::Word& word : *kind) words += (words.empty() ? "" : " ") + word.name;
    }
    out.words += fmt::format("    '{}') candidates='{}' ;;\n", c.path, words);
  }
  return out;
}

std::string bash_script(const std::string& program, const Cases& cases) {
  return fmt::format(R"(# bash completion for {0}; to use it now: source <({0} completion bash)
_{0}() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" command='{0}' word candidates=''
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
  COMPREPLY=($(compgen -W "$candidates" -- "$current"))
}}
complete -o default -F _{0} {0}
)",
                     program, cases.descend, cases.words);
}

std::string zsh_script(const std::string& program, const Cases& cases) {
  return fmt::format(R"(#compdef {0}
# zsh completion for {0}; to use it now: source <({0} completion zsh)
_{0}() {{
  local command='{0}' word candidates=''
  for word in "${{(@)words[2,CURRENT-1]}}"; do
    case "$word" in
      --) _files; return ;;
      -*) ;;
      *) case "$command $word" in
{1}         esac ;;
    esac
  done
  case "$command" in
{2}  esac
  compadd -- ${{=candidates}}
  _files
}}
if [[ $funcstack[1] == _{0} ]]; then _{0} "$@"; else compdef _{0} {0}; fi
)",
                     program, cases.descend, cases.words);
}

/// In single quotes of fish.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text)
    out += c == '\'' || c == '\\' ? fmt::format("\\{}", c) : std::string(1, c);
  return out + "'";
}

std::string fish_script(const std::string& program, const std::vector<CommandWords>& all) {
  std::string out =
      fmt::format(R"(# fish completion for {0}; to use it now: {0} completion fish | source
function __{0}_command
  set -l command {0}
  for word in (commandline -opc)[2..-1]
    switch "$command $word"
)",
                  program);
  for (const CommandWords& c : all) {
    if (&c != &all.front()) out += fmt::format("      case '{0}'; set command '{0}'\n", c.path);
  }
  out += "    end\n  end\n  echo $command\nend\n";
  for (const CommandWords& c : all) {
    const std::string here =
        fmt::format("complete -c {} -n 'test (__{}_command) = \"{}\"'", program, program, c.path);
    for (const auto& [name, help] : c.commands)
      out += fmt::format("{} -a {} -d {}\n", here, name, quoted(help));
    for (const auto& [name, help] : c.options)
      out += fmt::format("{} -l {} -d {}\n", here, name.substr(2), quoted(help));
  }
  return out;
}

}  // namespace

std::vector<CommandWords> command_words(const CLI::App& app) {
  std::vector<CommandWords> out;
  append_words(app, app.get_name(), out);
  return out;
}

std::string completion_script(const CLI::App& app, const std::string& shell) {
  const std::vector<CommandWords> all = command_words(app);
  if (shell == "fish") return fish_script(app.get_name(), all);
  const Cases cases = cases_of(all);
  return shell == "zsh" ? zsh_script(app.get_name(), cases) : bash_script(app.get_name(), cases);
}

}  // namespace stormo::cli
