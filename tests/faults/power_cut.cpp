#include "tests/faults/power_cut.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>

namespace specdec::testing {

namespace {

namespace fs = std::filesystem;
using Kind = ChangeKind;

struct Node;
using NodePtr = std::shared_ptr<Node>;
using Names = std::map<std::string, NodePtr>;

struct Edit {  // a write, or a truncation to `offset` bytes if data is empty
  int64_t offset;
  std::string data;
};

struct Node {
  enum class Type { kFile, kDirectory, kLink } type = Type::kFile;
  std::string target;   // target of a link
  std::string durable;  // bytes of a file at the last flush
  // Mode that the file was created with, under the common umask 022.
  fs::perms mode = fs::perms::owner_read | fs::perms::owner_write;
  std::vector<Edit> edits;     // changes of a file since its last flush
  Names names, durable_names;  // entries of a directory
};

void change_bytes(std::string& bytes, const Edit& edit) {
  const auto at = static_cast<size_t>(edit.offset);
  if (edit.data.empty()) return bytes.resize(at);
  if (bytes.size() < at + edit.data.size()) bytes.resize(at + edit.data.size());
  bytes.replace(at, edit.data.size(), edit.data);
}

void flush_contents(Node& file) {
  for (const Edit& edit : file.edits) change_bytes(file.durable, edit);
  file.edits.clear();
}

std::string read_bytes(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

NodePtr load(const fs::path& path) {
  auto node = std::make_shared<Node>();
  const fs::file_status status = fs::symlink_status(path);
  if (fs::is_symlink(status)) {
    node->type = Node::Type::kLink;
    node->target = fs::read_symlink(path).string();
  } else if (fs::is_directory(status)) {
    node->type = Node::Type::kDirectory;
    for (const auto& entry : fs::directory_iterator(path))
      node->names[entry.path().filename().string()] = load(entry.path());
    node->durable_names = node->names;
  } else {
    node->durable = read_bytes(path);
    node->mode = status.permissions();
  }
  return node;
}

void save(const Node& node, const fs::path& path) {
  switch (node.type) {
    case Node::Type::kLink:
      return fs::create_symlink(node.target, path);
    case Node::Type::kFile:
      std::ofstream(path, std::ios::binary) << node.durable;
      fs::permissions(path, node.mode);
      return;
    case Node::Type::kDirectory:
      break;
  }
  fs::create_directories(path);
  fs::permissions(path, fs::perms::owner_all);
  for (const auto& [name, child] : node.durable_names) save(*child, path / name);
}

// A change of directory entries that is not durable yet.
struct Pending {
  struct Effect {
    NodePtr directory;
    std::string name;
    NodePtr child;  // null: the name is removed
    bool same_name(const Effect& other) const { return directory == other.directory && name == other.name; }
  };
  std::vector<Effect> effects;
  bool settled = false;
};

class Disk {
 public:
  Disk(const fs::path& start, std::string root) : top_(load(start)), root_(std::move(root)) {}

  void make(const Change& c) {
    switch (c.kind) {
      case Kind::kCreate: {
        const NodePtr file = of_type(Node::Type::kFile);
        file->mode = static_cast<fs::perms>(c.offset & 0755);
        name(c, c.path, file);
        break;
      }
      case Kind::kMkdir:
        name(c, c.path, of_type(Node::Type::kDirectory));
        break;
      case Kind::kSymlink: {
        const NodePtr link = of_type(Node::Type::kLink);
        link->target = c.data;
        name(c, c.path, link);
        break;
      }
      case Kind::kRemove:
        name(c, c.path, nullptr);
        break;
      case Kind::kRename:
        move(c, nullptr);
        break;
      case Kind::kExchange:
        move(c, find(c.to));
        break;
      case Kind::kWrite:
      case Kind::kTruncate:
        if (const NodePtr node = find(c.path)) {
          node->edits.push_back({c.offset, c.kind == Kind::kWrite ? c.data : std::string()});
          if (c.flushed) flush_contents(*node);
        }
        break;
      case Kind::kFlush:
        if (const NodePtr node = find(c.path)) flush(node);
        break;
      case Kind::kLink:
      case Kind::kRead:
      case Kind::kSend:
        throw std::runtime_error(c.path + ": a hard link: the model of a power cut has none");
    }
  }

  void cut(Lost lost, uint64_t seed) {
    std::mt19937_64 random(seed);
    for (size_t i = 0; i < pending_.size(); ++i)
      if (lost == Lost::kContents || (lost == Lost::kSome && random() % 2 == 0)) settle(i);
    if (lost == Lost::kSome) keep_some(*top_, random);
  }

  const Node& top() const { return *top_; }

 private:
  static NodePtr of_type(Node::Type type) {
    auto node = std::make_shared<Node>();
    node->type = type;
    return node;
  }

  NodePtr find(const std::string& path) const {
    if (path == root_) return top_;
    if (path.compare(0, root_.size() + 1, root_ + "/") != 0) return nullptr;
    NodePtr node = top_;
    for (const fs::path& part : fs::path(path.substr(root_.size() + 1))) {
      if (!node || node->type != Node::Type::kDirectory) return nullptr;
      const auto found = node->names.find(part.string());
      node = found == node->names.end() ? nullptr : found->second;
    }
    return node;
  }

  Pending::Effect effect(const std::string& path, NodePtr child) const {
    const fs::path p(path);
    const NodePtr directory = find(p.parent_path().string());
    if (!directory) throw std::runtime_error(path + ": its directory is not in the model");
    return {directory, p.filename().string(), std::move(child)};
  }

  void add(const Change& c, std::vector<Pending::Effect> effects) {
    for (const Pending::Effect& e : effects) {
      if (e.child)
        e.directory->names[e.name] = e.child;
      else
        e.directory->names.erase(e.name);
    }
    pending_.push_back({std::move(effects)});
    if (c.flushed) settle(pending_.size() - 1);
  }

  void name(const Change& c, const std::string& path, NodePtr child) { add(c, {effect(path, std::move(child))}); }
  void move(const Change& c, NodePtr back) {
    const NodePtr moved = find(c.path);
    if (!moved) throw std::runtime_error(c.path + ": moved, but not in the model");
    add(c, {effect(c.path, std::move(back)), effect(c.to, moved)});
  }

  void flush(const NodePtr& node) {
    flush_contents(*node);
    for (size_t i = 0; i < pending_.size(); ++i)
      for (const Pending::Effect& e : std::vector(pending_[i].effects))
        if (e.directory == node) settle(i);
  }

  // Makes a change of directory entries durable. Before it, makes all earlier changes of the same entries durable.
  void settle(size_t i) {
    if (pending_[i].settled) return;
    pending_[i].settled = true;
    for (size_t j = 0; j < i; ++j)
      for (const Pending::Effect& mine : pending_[i].effects)
        if (std::any_of(pending_[j].effects.begin(), pending_[j].effects.end(),
                        [&](const auto& e) { return e.same_name(mine); }))
          settle(j);
    for (const Pending::Effect& e : pending_[i].effects) {
      if (e.child)
        e.directory->durable_names[e.name] = e.child;
      else
        e.directory->durable_names.erase(e.name);
    }
  }

  static void keep_some(Node& node, std::mt19937_64& random) {
    for (const auto& [name, child] : node.durable_names) keep_some(*child, random);
    const size_t whole = node.edits.empty() ? 0 : random() % (node.edits.size() + 1);
    for (size_t i = 0; i < whole; ++i) change_bytes(node.durable, node.edits[i]);
    if (whole < node.edits.size() && node.edits[whole].data.size() > 1 && random() % 2 == 0)
      change_bytes(node.durable,
                   {node.edits[whole].offset, node.edits[whole].data.substr(0, node.edits[whole].data.size() / 2)});
    node.edits.clear();
  }

  NodePtr top_;
  std::string root_;
  std::vector<Pending> pending_;
};

}  // namespace

PowerCut::PowerCut(const fs::path& journal, fs::path start, const std::string& root)
    : start_(std::move(start)), root_(root) {
  const std::string bytes = read_bytes(journal);
  std::string_view rest = bytes;
  for (Change c; decode(rest, c);) changes_.push_back(c);
  if (!rest.empty()) throw std::runtime_error(journal.string() + ": ends within a change");
  restore(changes_.size(), Lost::kAll, 0, {});  // throws if the model does not know a change
}

std::string PowerCut::name(size_t n) const {
  static const char* const kNames[] = {"create", "cut",     "write",  "flush", "rename", "exchange",
                                       "link",   "symlink", "remove", "mkdir", "read"};
  const Change& c = changes_.at(n);
  return std::string(kNames[static_cast<size_t>(c.kind)]) + " " + c.path + (c.to.empty() ? "" : " -> " + c.to);
}

void PowerCut::restore(size_t n, Lost lost, uint64_t seed, const fs::path& out) const {
  Disk disk(start_, root_);
  for (size_t i = 0; i < std::min(n, changes_.size()); ++i) disk.make(changes_[i]);
  if (out.empty()) return;
  disk.cut(lost, seed);
  fs::create_directories(out);
  for (const auto& entry : fs::directory_iterator(out)) fs::remove_all(entry.path());
  save(disk.top(), out);
}

}  // namespace specdec::testing
