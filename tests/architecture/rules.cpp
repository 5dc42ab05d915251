#include "tests/architecture/rules.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>

namespace specdec::architecture {

namespace {

namespace fs = std::filesystem;

struct Include {
  int line;
  bool quoted;
  std::string path;
};
struct Source {
  std::vector<std::string> lines;  // the lines, without comments and without the contents of strings
  std::vector<int> columns;        // number of characters of each original line
  std::vector<Include> includes;
};
using Tree = std::map<std::string, Source>;

// A Room lists files, and the headers that these files may include besides the standard library and third-party
// libraries. If several rooms match a file, the first one applies. "base/" means all files in the folder and its
// subfolders, "monitor/*" only the files directly in the folder, and "base/model_directory." the header and the source
// of that name.
struct Room {
  std::vector<std::string> files;
  std::vector<std::string> may_include;
};
const std::vector<Room> kRooms = {
    // engine: kernels/ dispatches to the CPU kernels, so it may include them. The CUDA kernels are in a library that is
    // loaded at run time when it is needed.
    {{"engine/kernels/cpu/"}, {"engine/kernels/cpu/", "base/"}},
    // The verification rules are templates that both the host's steps and the CUDA kernels use.
    {{"engine/rules/"}, {"engine/rules/", "base/"}},
    {{"engine/kernels/cuda/"}, {"engine/kernels/cuda/", "engine/kernels/*", "engine/rules/", "base/"}},
    {{"engine/kernels/no_cuda/"}, {"engine/kernels/*", "base/"}},
    {{"engine/kernels/"}, {"engine/kernels/*", "engine/kernels/cpu/", "engine/rules/", "base/"}},
    // The half of parallel/ without LibTorch detects how the processes were started, and watches over them.
    {{"engine/parallel/launch.", "engine/parallel/rank_watch.", "engine/parallel/addresses."},
     {"engine/parallel/launch.h", "engine/parallel/rank_watch.h", "engine/parallel/addresses.h", "base/"}},
    {{"engine/parallel/"}, {"engine/parallel/", "engine/config/", "engine/kernels/*", "base/"}},
    // A model: its configuration, its weights, its KV cache and its forward pass.
    {{"engine/config/"}, {"engine/config/", "base/"}},
    {{"engine/weights/"}, {"engine/weights/", "engine/config/", "engine/kernels/*", "engine/kernels/cpu/", "base/"}},
    {{"engine/cache/"}, {"engine/cache/", "engine/config/", "engine/kernels/*", "engine/kernels/cpu/", "base/"}},
    {{"engine/forward/"},
     {"engine/forward/", "engine/cache/", "engine/weights/", "engine/config/", "engine/kernels/*",
      "engine/kernels/cpu/", "base/"}},
    // Only runners and device rounds (decoding rounds on a GPU) may include models; drafting, verification and the
    // choice of K work on distributions and counts. A device round launches kernels between the passes.
    {{"engine/decode/sampling/"}, {"engine/decode/sampling/", "engine/rules/", "base/"}},
    {{"engine/decode/control/"}, {"engine/decode/control/", "engine/rules/", "base/"}},
    {{"engine/decode/runners/"},
     {"engine/decode/runners/", "engine/forward/", "engine/cache/", "engine/weights/", "engine/config/", "base/"}},
    {{"engine/decode/round/"},
     {"engine/decode/round/", "engine/decode/runners/", "engine/decode/control/", "engine/decode/sampling/",
      "engine/rules/", "base/"}},
    {{"engine/decode/device/"},
     {"engine/decode/device/", "engine/decode/round/", "engine/decode/runners/", "engine/decode/control/",
      "engine/decode/sampling/", "engine/forward/", "engine/config/", "engine/kernels/*", "base/"}},
    {{"engine/decode/"}, {"engine/decode/", "engine/rules/", "base/"}},
    // The self-test compares kernels with its own versions in plain C++ and with the host's sampler and verification.
    {{"engine/self_test/"},
     {"engine/self_test/", "engine/decode/runners/", "engine/decode/sampling/", "engine/forward/", "engine/kernels/*",
      "base/"}},

    // base: model_directory resolves packages and therefore reads their manifests; no other file of base/ outside
    // base/schema/ may include a schema.
    {{"base/schema/", "base/model_directory."}, {"base/"}},
    {{"base/page/"}, {"base/page/", "base/*"}},
    {{"base/safetensors.", "base/gguf/"}, {"base/gguf/", "base/*"}},  // model directories with safetensors or GGUF
    {{"base/"}, {"base/*"}},
    {{"text/"}, {"text/", "rust/", "base/"}},
    {{"rust/"}, {"rust/"}},
    {{"net/"}, {"net/", "base/"}},

    // data: the readers of row formats use neither files nor the network. The exception is the join of batch requests
    // and responses, which uses a file. Only regenerate sends requests to an endpoint.
    {{"data/shards/"}, {"data/shards/", "base/"}},
    {{"data/select/"}, {"data/select/", "base/"}},
    {{"data/formats/"}, {"data/formats/", "data/select/", "base/"}},
    {{"data/redact/"}, {"data/redact/", "data/formats/", "base/"}},
    {{"data/sources/"}, {"data/sources/", "data/formats/", "text/", "base/"}},
    {{"data/regenerate/"}, {"data/", "net/", "base/"}},
    {{"data/"},
     {"data/*", "data/shards/", "data/select/", "data/formats/", "data/redact/", "data/sources/", "text/", "base/"}},

    // distill: settings, labels and metrics must build without LibTorch, and only labels send requests to other
    // machines.
    {{"distill/settings/"}, {"distill/settings/", "base/"}},
    {{"distill/labels/"}, {"distill/labels/", "data/shards/", "data/regenerate/", "base/"}},
    {{"distill/metrics/"}, {"distill/metrics/", "base/"}},
    {{"distill/rows/"}, {"distill/rows/", "base/"}},
    {{"distill/loss/"}, {"distill/loss/", "distill/settings/", "base/"}},
    {{"distill/teacher/"},
     {"distill/teacher/", "distill/labels/", "distill/loss/", "distill/rows/", "distill/settings/", "data/shards/",
      "engine/", "base/"}},
    {{"distill/gradient/"},
     {"distill/gradient/", "distill/teacher/", "distill/loss/", "distill/rows/", "distill/settings/", "engine/",
      "base/"}},
    {{"distill/train/"},
     {"distill/train/", "distill/gradient/", "distill/teacher/", "distill/loss/", "distill/metrics/", "distill/rows/",
      "distill/settings/", "engine/", "base/"}},
    {{"distill/run/"},
     {"distill/run/", "distill/train/", "distill/gradient/", "distill/teacher/", "distill/metrics/", "distill/rows/",
      "distill/settings/", "data/shards/", "engine/", "base/"}},
    {{"distill/study/"},
     {"distill/study/", "distill/run/", "distill/train/", "distill/settings/", "data/shards/", "base/"}},

    // deploy, from the bottom up: reports and models, then the gate, the bench, packages, stores, and the server,
    // which has no code that downloads anything.
    {{"deploy/report/"}, {"deploy/report/", "base/"}},
    // A target that is divided among several processes needs a runner that sends orders to the other processes.
    {{"deploy/models/load_pair.", "deploy/models/tensor_ranks."},
     {"deploy/models/", "engine/config/", "engine/weights/", "engine/forward/", "engine/decode/", "engine/parallel/",
      "engine/kernels/*", "text/", "base/"}},
    {{"deploy/models/"}, {"deploy/models/", "engine/config/", "engine/weights/", "engine/forward/", "text/", "base/"}},
    {{"deploy/validate/"},
     {"deploy/validate/", "deploy/report/", "deploy/models/", "data/shards/", "engine/", "base/"}},
    {{"deploy/bench/"},
     {"deploy/bench/", "deploy/validate/", "deploy/report/", "deploy/models/", "data/shards/", "engine/decode/",
      "base/"}},
    {{"deploy/package/"}, {"deploy/package/", "base/"}},
    {{"deploy/stores/"}, {"deploy/stores/", "deploy/package/", "net/", "base/"}},
    // One half of the server speaks to clients (http, request, answer), the other half to the engine (queue, schedule).
    {{"deploy/serve/request/"}, {"deploy/serve/request/", "engine/decode/", "text/", "base/"}},
    {{"deploy/serve/http/"}, {"deploy/serve/http/", "deploy/serve/request/", "base/"}},
    {{"deploy/serve/queue/"}, {"deploy/serve/queue/", "deploy/serve/request/", "engine/decode/", "base/"}},
    {{"deploy/serve/answer/"},
     {"deploy/serve/answer/", "deploy/serve/queue/", "deploy/serve/request/", "deploy/serve/http/", "text/", "base/"}},
    {{"deploy/serve/schedule/"},
     {"deploy/serve/schedule/", "deploy/serve/answer/", "deploy/serve/queue/", "deploy/serve/request/",
      "deploy/serve/http/", "engine/decode/", "text/", "base/"}},
    {{"deploy/serve/api/"},
     {"deploy/serve/api/", "deploy/serve/schedule/", "deploy/serve/answer/", "deploy/serve/queue/",
      "deploy/serve/request/", "deploy/serve/http/", "text/", "base/"}},
    {{"deploy/serve/engine/"},
     {"deploy/serve/engine/", "deploy/serve/*", "deploy/serve/schedule/", "deploy/serve/queue/", "deploy/models/",
      "deploy/package/", "engine/decode/", "base/"}},
    {{"deploy/serve/"},
     {"deploy/serve/*", "deploy/serve/api/", "deploy/serve/schedule/", "deploy/serve/queue/", "deploy/serve/request/",
      "deploy/serve/http/", "base/"}},
    {{"deploy/generate/"}, {"deploy/generate/", "deploy/models/", "deploy/serve/request/", "engine/decode/", "base/"}},

    // monitor: the state machine and the statistics use neither database nor network, and only files directly in
    // monitor/ may include monitor/actions/.
    {{"monitor/read/"}, {"monitor/read/", "net/", "base/"}},
    {{"monitor/statistics/"}, {"monitor/statistics/", "monitor/read/", "base/"}},
    {{"monitor/state/"}, {"monitor/state/", "monitor/statistics/", "monitor/read/", "base/"}},
    {{"monitor/facts/"}, {"monitor/facts/", "monitor/state/", "monitor/statistics/", "monitor/read/", "net/", "base/"}},
    {{"monitor/machine/"}, {"monitor/machine/", "monitor/facts/", "monitor/state/", "base/"}},
    {{"monitor/actions/"},
     {"monitor/actions/", "monitor/machine/", "monitor/facts/", "monitor/state/", "monitor/read/", "net/", "base/"}},
    {{"monitor/report/"},
     {"monitor/report/", "monitor/machine/", "monitor/facts/", "monitor/state/", "monitor/statistics/", "base/"}},
    {{"monitor/"}, {"monitor/", "net/", "base/"}},

    // Of the command line, only `doctor` uses the engine directly, to check the machine.
    {{"cli/engine/doctor."}, {"cli/", "engine/self_test/", "base/"}},
    {{"cli/"}, {"cli/", "data/", "distill/", "deploy/", "monitor/", "net/", "engine/parallel/launch.h", "base/"}},
    {{"tests/"}, {"tests/", "cli/", "data/", "distill/", "deploy/", "monitor/", "engine/", "text/", "net/", "base/"}},
};
// The stages whose folders are rooms. In a stage each row of kRooms names folders, a folder has at most kMaxUnits units
// (a header and its source are one unit), and includes between folders make no circle.
const std::vector<std::string> kStages = {"data/", "distill/", "engine/", "deploy/serve/", "monitor/"};
constexpr size_t kMaxUnits = 20;
// Returns whether an entry names files of engine/parallel, whose half without LibTorch is too small for a folder of its
// own.
bool is_half(const std::string& entry) { return entry.rfind("engine/parallel/", 0) == 0; }
const std::set<std::string> kTopFolders = {"base", "cli",    "cmake",   "data", "deploy", "dist",  "distill",
                                           "docs", "engine", "monitor", "net",  "rust",   "tests", "text"};
const std::set<std::string> kCatchAlls = {"common", "core", "util", "utils", "helpers", "misc"};
constexpr size_t kMaxSourceLines = 500, kMaxHeaderLines = 250;
constexpr int kMaxFunctionLines = 80, kMaxColumns = 120;

bool starts_with(const std::string& text, const std::string& prefix) { return text.rfind(prefix, 0) == 0; }
// Returns whether `file` matches `entry`, an element of Room::files or Room::may_include.
bool stands_for(const std::string& entry, const std::string& file) {
  if (!entry.ends_with("/*")) return starts_with(file, entry);
  const std::string folder = entry.substr(0, entry.size() - 1);
  return starts_with(file, folder) && file.find('/', folder.size()) == std::string::npos;
}
bool is_one_of(const std::vector<std::string>& entries, const std::string& file) {
  return std::any_of(entries.begin(), entries.end(), [&](const std::string& entry) { return stands_for(entry, file); });
}
bool is_header(const std::string& file) { return file.ends_with(".h") || file.ends_with(".cuh"); }
bool is_source(const std::string& file) { return file.ends_with(".cpp") || file.ends_with(".cu") || is_header(file); }
bool is_library(const std::string& file) { return !starts_with(file, "cli/") && !starts_with(file, "tests/"); }

// Returns whether `file` must not depend on LibTorch.
bool is_torch_free(const std::string& file) {
  for (const char* prefix :
       {"base/", "net/", "text/", "data/", "monitor/", "deploy/package/", "deploy/report/", "deploy/stores/"})
    if (starts_with(file, prefix)) return true;
  const auto light = [&](const std::string& folder) {
    return starts_with(file, folder) && !starts_with(file, folder + "engine/");
  };
  return light("deploy/serve/") || light("cli/");
}

// Removes comments, and the contents of string and character literals but not their quotes. Understands raw strings
// with delimiters.
std::vector<std::string> without_comments(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i], next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (c == '/' && next == '/') {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if (c == '/' && next == '*') {
      const size_t end = std::min(text.find("*/", i + 2), text.size());
      out.append(static_cast<size_t>(std::count(text.begin() + static_cast<std::ptrdiff_t>(i),
                                                text.begin() + static_cast<std::ptrdiff_t>(end), '\n')),
                 '\n');
      i = end + 1;
    } else if (c == 'R' && next == '"' && (i == 0 || !std::isalnum(static_cast<unsigned char>(text[i - 1])))) {
      const size_t open = text.find('(', i);
      const size_t end = std::min(text.find(")" + text.substr(i + 2, open - i - 2) + "\"", open), text.size());
      out +=
          "\"\"" + std::string(static_cast<size_t>(std::count(text.begin() + static_cast<std::ptrdiff_t>(i),
                                                              text.begin() + static_cast<std::ptrdiff_t>(end), '\n')),
                               '\n');
      i = end + open - i - 1;
    } else if (c == '"' || (c == '\'' && (i == 0 || !std::isalnum(static_cast<unsigned char>(text[i - 1]))))) {
      size_t end = i + 1;
      while (end < text.size() && text[end] != c && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
      out += {c, c};
      i = end;
    } else {
      out += c;
    }
  }
  std::vector<std::string> lines;
  std::istringstream in(out);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

Source read_source(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  Source source{without_comments(text), {}, {}};
  static const std::regex kInclude(R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"])re");
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    // Returns whether a byte continues a UTF-8 character.
    const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
    source.columns.push_back(static_cast<int>(std::count_if(line.begin(), line.end(), std::not_fn(continues))));
    std::smatch match;
    if (std::regex_search(line, match, kInclude)) source.includes.push_back({number, match[1] == "\"", match[2]});
  }
  return source;
}

// Returns the regular files below `root`, without the outputs of builds.
std::vector<std::string> files_of(const fs::path& root) {
  std::vector<std::string> files;
  for (fs::recursive_directory_iterator it(root), end; it != end; ++it) {
    const std::string name = it->path().filename().string();
    const bool skip = starts_with(name, ".") || (it.depth() == 0 && (starts_with(name, "build") || name == "dist"));
    if (it->is_directory() && (skip || name == "target")) it.disable_recursion_pending();  // target: cargo's output
    if (it->is_regular_file() && !it->is_symlink())
      files.push_back(it->path().lexically_relative(root).generic_string());
  }
  return files;
}

void check_conflicts(const fs::path& root, const std::string& file, std::vector<Violation>& violations) {
  std::ifstream in(root / file, std::ios::binary);
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (starts_with(line, "<<<<<<< ") || starts_with(line, ">>>>>>> "))
      violations.push_back({file, number, "a conflict marker: a merge was not finished"});
  }
}

class Checker {
 public:
  explicit Checker(Tree tree) : tree_(std::move(tree)) {}

  std::vector<Violation> run() {
    for (const auto& [file, source] : tree_) {
      check_folder(file);
      check_includes(file, source);
      check_declarations(file, source);
      check_calls(file, source);
      check_sizes(file, source);
      if (is_torch_free(file)) check_torch_free(file);
    }
    for (const std::string& stage : kStages) {
      check_rows(stage);
      check_units(stage);
      check_circles(stage);
    }
    return std::move(violations_);
  }

 private:
  void add(const std::string& file, int line, const std::string& text) { violations_.push_back({file, line, text}); }

  void check_folder(const std::string& file) {
    const size_t slash = file.find('/');
    if (slash == std::string::npos) return add(file, 0, "source files live in the folders of the architecture");
    if (!kTopFolders.count(file.substr(0, slash))) add(file, 0, "unknown folder " + file.substr(0, slash));
    for (const fs::path& part : fs::path(file).parent_path())
      if (kCatchAlls.count(part.string())) add(file, 0, "a folder called " + part.string() + " becomes a catch-all");
  }

  static std::string folder_of(const std::string& file) { return file.substr(0, file.rfind('/')); }

  void check_rows(const std::string& stage) {
    for (const Room& room : kRooms)
      for (const auto* entries : {&room.files, &room.may_include})
        for (const std::string& entry : *entries)
          if (starts_with(entry, stage) && !entry.ends_with("/") && !entry.ends_with("/*") && !is_half(entry))
            add(entry, 0, "a row of the table of rooms names a unit: a room is a folder");
  }

  void check_units(const std::string& stage) {
    std::map<std::string, std::set<std::string>> units;  // folder → names without their endings
    for (const auto& [file, source] : tree_)
      if (starts_with(file, stage)) units[folder_of(file)].insert(file.substr(0, file.rfind('.')));
    for (const auto& [folder, names] : units)
      if (names.size() > kMaxUnits)
        add(folder, 0, std::to_string(names.size()) + " units, the limit is " + std::to_string(kMaxUnits));
  }

  // Reports one include of each circle of folders. Includes that the table forbids are reported elsewhere and do not
  // count here.
  void check_circles(const std::string& stage) {
    // Including folder → included folder → file and line of one include.
    std::map<std::string, std::map<std::string, std::pair<std::string, int>>> arrows;
    for (const auto& [file, source] : tree_)
      for (const Include& include : source.includes)
        if (starts_with(file, stage) && starts_with(include.path, stage) && tree_.count(include.path) &&
            folder_of(file) != folder_of(include.path) && !forbidden_.contains({file, include.line}))
          arrows[folder_of(file)].emplace(folder_of(include.path), std::pair(file, include.line));
    std::set<std::string> left, open;  // left: searched completely; open: on the current path
    const std::function<void(const std::string&)> follow = [&](const std::string& folder) {
      open.insert(folder);
      for (const auto& [next, include] : arrows[folder]) {
        if (open.contains(next)) add(include.first, include.second, folder + " and " + next + " are in a circle");
        if (!open.contains(next) && !left.contains(next)) follow(next);
      }
      open.erase(folder);
      left.insert(folder);
    };
    for (const auto& [file, source] : tree_)
      if (starts_with(file, stage) && !left.contains(folder_of(file))) follow(folder_of(file));
  }

  void check_includes(const std::string& file, const Source& source) {
    const auto own =
        std::find_if(kRooms.begin(), kRooms.end(), [&](const Room& room) { return is_one_of(room.files, file); });
    for (const Include& include : source.includes) {
      const bool ours = kTopFolders.count(include.path.substr(0, include.path.find('/'))) &&
                        include.path.find('/') != std::string::npos;
      if (include.path.find("..") != std::string::npos)
        add(file, include.line, "\"..\" in an include: own headers are included root-relative");
      if (!include.quoted && ours && tree_.count(include.path))
        add(file, include.line, "<" + include.path + ">: own headers are included in quotes");
      if (include.quoted && !tree_.count(include.path))
        add(file, include.line, "\"" + include.path + "\": no such own header (root-relative)");
      if (include.quoted && ours && own != kRooms.end() && !is_one_of(own->may_include, include.path)) {
        add(file, include.line, own->files.front() + " must not include " + include.path);
        forbidden_.emplace(file, include.line);
      }
    }
    if (own == kRooms.end() && file.find('/') != std::string::npos)
      add(file, 0, "no row of the table of rooms names its folder");
    for (const Include& include : source.includes) {
      if (include.path == "torch/torch.h" || starts_with(include.path, "torch/nn"))
        add(file, include.line, include.path + ": plain ATen only (torch.h costs 16 s a file)");
      if (file.ends_with(".cu") && (starts_with(include.path, "ATen/") || starts_with(include.path, "torch/") ||
                                    starts_with(include.path, "c10/")))
        add(file, include.line, ".cu files take raw pointers, not " + include.path);
    }
    if (file.ends_with(".cu") && !starts_with(file, "engine/kernels/cuda/") && !starts_with(file, "tests/"))
      add(file, 0, ".cu files live in engine/kernels/cuda");
    if (file.ends_with(".cu")) check_shared_variables(file, source);
  }

  // Reports __shared__ variables of templates: the tests without a GPU cannot fill them with garbage, so a missing
  // barrier would not be noticed.
  void check_shared_variables(const std::string& file, const Source& source) {
    bool in_template = false;
    for (size_t i = 0; i < source.lines.size(); ++i) {
      const std::string& line = source.lines[i];
      if (starts_with(line, "template")) in_template = true;
      if (starts_with(line, "}")) in_template = false;
      if (in_template && line.find("__shared__") != std::string::npos)
        add(file, static_cast<int>(i) + 1, "__shared__ in a template: take shared_memory() (ptx.h)");
    }
  }

  // Reports `extern` declarations in source files: a constant or function of another file must come from that file's
  // header, so that its type is written only once.
  void check_declarations(const std::string& file, const Source& source) {
    static const std::regex kExtern(R"(^\s*extern\s+(?!""))");
    static const std::regex kThreadLocal(R"(^(static |inline )*thread_local\b)");
    for (size_t i = 0; i < source.lines.size(); ++i) {
      if (!is_header(file) && std::regex_search(source.lines[i], kExtern))
        add(file, static_cast<int>(i) + 1, "extern in a source file: include the header of what defines it");
      if (std::regex_search(source.lines[i], kThreadLocal))
        add(file, static_cast<int>(i) + 1, "thread_local outside of a function: who uses it keeps it");
    }
  }

  void check_calls(const std::string& file, const Source& source) {
    if (!is_library(file)) return;
    static const std::regex kPrint(
        R"((\bstd::(cout|cerr|clog|print|println)\b)|((^|[^\w.>])(std::)?(printf|fprintf|vprintf|vfprintf|puts|)"
        R"(fputs|putchar|perror)\s*\())");
    static const std::regex kExit(R"((^|[^\w.>])(std::|::)?(abort|exit|quick_exit|terminate)\s*\()");
    for (size_t i = 0; i < source.lines.size(); ++i) {
      if (std::regex_search(source.lines[i], kPrint)) add(file, static_cast<int>(i) + 1, "libraries never print");
      if (std::regex_search(source.lines[i], kExit))
        add(file, static_cast<int>(i) + 1, "libraries never abort or exit");
      if (source.lines[i].find("torch::nn") != std::string::npos) add(file, static_cast<int>(i) + 1, "no torch::nn");
    }
  }

  void check_sizes(const std::string& file, const Source& source) {
    const size_t limit = is_header(file) ? kMaxHeaderLines : kMaxSourceLines;
    if (source.lines.size() > limit)
      add(file, 0, std::to_string(source.lines.size()) + " lines, the limit is " + std::to_string(limit));
    for (size_t i = 0; i < source.columns.size(); ++i)
      if (source.columns[i] > kMaxColumns)
        add(file, static_cast<int>(i) + 1,
            "line of " + std::to_string(source.columns[i]) + " columns, the limit is " + std::to_string(kMaxColumns));
    // A function or a class member ends at a brace with its own indentation. It begins at the last line before that
    // brace that has the same indentation.
    static const std::regex kNoFunction(
        R"(^\s*(namespace|struct|class|enum|union|extern|using|#|public:|private:|protected:|\}|\)))");
    for (const int indent : {0, 2}) {
      int begin = -1;
      for (size_t i = 0; i < source.lines.size(); ++i) {
        const std::string& line = source.lines[i];
        const size_t first = line.find_first_not_of(' ');
        if (first == std::string::npos || first > static_cast<size_t>(indent)) continue;
        const bool closes = first == static_cast<size_t>(indent) && line[first] == '}';
        const int length = static_cast<int>(i) - begin + 1;
        const bool table = begin >= 0 && source.lines[static_cast<size_t>(begin)].ends_with("= {");
        if (closes && begin >= 0 && !table && length > kMaxFunctionLines)
          add(file, begin + 1,
              "function of " + std::to_string(length) + " lines, the limit is " + std::to_string(kMaxFunctionLines));
        begin =
            first == static_cast<size_t>(indent) && !std::regex_search(line, kNoFunction) ? static_cast<int>(i) : -1;
      }
    }
  }

  // Reports LibTorch headers that a torch-free file includes, directly or through other headers.
  void check_torch_free(const std::string& file) {
    std::set<std::string> seen = {file};
    std::vector<std::string> open = {file};
    while (!open.empty()) {
      const std::string current = open.back();
      open.pop_back();
      for (const Include& include : tree_[current].includes) {
        if (starts_with(include.path, "ATen/") || starts_with(include.path, "torch/") ||
            starts_with(include.path, "c10/"))
          return add(file, current == file ? include.line : 0,
                     "torch-free, but includes " + include.path + (current == file ? "" : " through " + current));
        if (tree_.count(include.path) && seen.insert(include.path).second) open.push_back(include.path);
      }
    }
  }

  Tree tree_;
  std::vector<Violation> violations_;
  std::set<std::pair<std::string, int>> forbidden_;  // includes that the table forbids, by file and line
};

}  // namespace

std::vector<Violation> check_tree(const fs::path& root) {
  Tree tree;
  std::vector<Violation> violations;
  for (const std::string& file : files_of(root)) {
    check_conflicts(root, file, violations);
    if (is_source(file)) tree[file] = read_source(root / file);
  }
  const std::vector<Violation> in_sources = Checker(std::move(tree)).run();
  violations.insert(violations.end(), in_sources.begin(), in_sources.end());
  return violations;
}

}  // namespace specdec::architecture
