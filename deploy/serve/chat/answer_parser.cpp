#include "deploy/serve/chat/answer_parser.h"

#include <optional>
#include <utility>

#include "deploy/serve/chat/call_reader.h"
#include "deploy/serve/stop.h"

namespace specdec::deploy {

namespace {

constexpr size_t kCallBytes = 128;  // of a call in a reply, without its name and arguments

// Returns the texts after which a call begins.
std::vector<std::string> call_markers(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHermes:
      return {"<tool_call>"};
    case ToolFormat::kQwen3Coder:
      return {"<tool_call>", "<function="};
    case ToolFormat::kLlama3Json:
      return {"<|python_tag|>"};
    case ToolFormat::kMistral:
      return {"[TOOL_CALLS]"};
    case ToolFormat::kNone:
      break;
  }
  return {};
}

}  // namespace

void AnswerPiece::add_call(CallPiece piece) {
  if (calls.empty() || calls.back().index != piece.index) {
    calls.push_back(std::move(piece));
    return;
  }
  calls.back().name += piece.name;
  calls.back().arguments += piece.arguments;
}

void AnswerPiece::append(const AnswerPiece& next) {
  content += next.content;
  reasoning += next.reasoning;
  for (const CallPiece& call : next.calls) add_call(call);
}

size_t AnswerPiece::bytes() const {
  size_t sum = content.size() + reasoning.size();
  for (const CallPiece& call : calls) sum += kCallBytes + call.name.size() + call.arguments.size();
  return sum;
}

bool ends_with_marker(std::string_view prompt, const std::string& marker) {
  while (!prompt.empty() && is_json_space(prompt.back())) prompt.remove_suffix(1);
  return !marker.empty() && prompt.ends_with(marker);
}

class AnswerParser::Machine {
 public:
  explicit Machine(std::shared_ptr<const AnswerFormat> format)
      : format_(std::move(format)), markers_(call_markers(format_->tools)) {
    if (format_->begins_in_call)
      begin_call_start();
    else if (format_->begins_reasoning)
      begin_reasoning();
    else
      phase_ = format_->reasoning.begin.empty() ? Phase::kBody : Phase::kStart;
  }

  AnswerPiece push(std::string_view text) {
    for (const char c : text) step(c);
    return std::exchange(out_, {});
  }

  AnswerPiece finish() {
    if (phase_ == Phase::kReasoning) add_reasoning(search_->finish());
    if (phase_ == Phase::kContent) add_content(search_->finish());
    // After a call raw_ holds at most the beginning of what would close it.
    if (phase_ != Phase::kCallEnd) add_content(std::exchange(raw_, ""));
    if (calls_ == 0) out_.content += std::exchange(spaces_, "");
    return std::exchange(out_, {});
  }

 private:
  enum class Phase {
    kStart,      // before the first byte that shows whether the answer begins with thoughts
    kReasoning,  // in thoughts
    kBody,       // before the first byte of the content
    kContent,    // in content, looking for the marker of a call
    kCallStart,  // after the marker of a call
    kCall,       // in a call
    kCallEnd,    // after a call, where its closing marker or another call may follow
  };

  void step(char c) {
    switch (phase_) {
      case Phase::kStart:
        return in_start(c);
      case Phase::kReasoning:
        add_reasoning(search_->push({&c, 1}));
        if (search_->matched()) end_reasoning();
        return;
      case Phase::kBody:
        return in_body(c);
      case Phase::kContent:
        add_content(search_->push({&c, 1}));
        if (search_->matched()) end_content(c);
        return;
      case Phase::kCallStart:
        return in_call_start(c);
      case Phase::kCall:
        return in_call(c);
      case Phase::kCallEnd:
        return in_call_end(c);
    }
  }

  // Thoughts begin with their marker, which only white space may precede.
  void in_start(char c) {
    raw_ += c;
    if (tag_.empty() && is_json_space(c)) return;
    tag_ += c;
    if (tag_ == format_->reasoning.begin) return begin_reasoning();
    if (format_->reasoning.begin.starts_with(tag_)) return;
    phase_ = Phase::kBody;
    replay();
  }

  // Takes the text that was held back once more, in the phase in which it belongs.
  void replay() {
    for (const char held : std::exchange(raw_, "")) step(held);
  }

  void begin_reasoning() {
    raw_.clear();
    phase_ = Phase::kReasoning;
    search_.emplace(std::vector<std::string>{format_->reasoning.end});
    new_lines_ = 0;
    fresh_ = true;
  }

  // Holds new lines back until another byte follows, because those before the closing marker belong to it.
  void add_reasoning(const std::string& text) {
    for (const char c : text) {
      if (c == '\n') {
        new_lines_ += !fresh_;
        continue;
      }
      out_.reasoning.append(std::exchange(new_lines_, 0), '\n') += c;
      fresh_ = false;
    }
  }

  void end_reasoning() {
    phase_ = Phase::kBody;
    skip_new_lines_ = true;
  }

  void in_body(char c) {
    if (skip_new_lines_ && c == '\n') return;
    skip_new_lines_ = false;
    raw_ += c;
    if (format_->tools == ToolFormat::kLlama3Json) {
      if (is_json_space(c)) return;
      if (c == '{') return begin_call(make_json_call_reader(&format_->offered));
    }
    begin_content();
    replay();
  }

  void begin_content() {
    phase_ = Phase::kContent;
    search_.emplace(markers_);
  }

  // Holds white space back until other text follows, because white space before a call is not content.
  void add_content(const std::string& text) {
    for (const char c : text) {
      spaces_ += c;
      if (markers_.empty() || !is_json_space(c)) out_.content += std::exchange(spaces_, "");
    }
  }

  // Ends the content at the marker whose last byte is `last`.
  void end_content(char last) {
    raw_ = std::exchange(spaces_, "");
    if (last == '=') {
      raw_ += kFunction;
      return begin_call(make_xml_call_reader(format_->offered));
    }
    raw_ += markers_.front();
    begin_call_start();
  }

  // Returns what was held back as content. The marker in it is not looked at a second time.
  void show_raw() {
    add_content(std::exchange(raw_, ""));
    begin_content();
  }

  void begin_call_start() {
    in_list_ = false;
    tag_.clear();
    phase_ = Phase::kCallStart;
  }

  void in_call_start(char c) {
    const ToolFormat tools = format_->tools;
    const bool in_tags = tools == ToolFormat::kHermes || tools == ToolFormat::kQwen3Coder;
    if (in_tags && (c == '<' || !tag_.empty())) return in_function_tag(c);
    const bool opens_list = tools == ToolFormat::kMistral && c == '[' && !in_list_;
    in_list_ |= opens_list;
    if (opens_list || is_json_space(c)) {
      raw_ += c;
    } else if (c == '{') {
      raw_ += c;
      begin_call(make_json_call_reader(tools == ToolFormat::kLlama3Json ? &format_->offered : nullptr));
    } else if (tools == ToolFormat::kMistral && !in_list_) {
      begin_call(make_named_call_reader());
      in_call(c);
    } else {
      show_raw();
      step(c);
    }
  }

  // Calls in tags may be JSON, or as Qwen3-Coder writes them. The text tells which.
  void in_function_tag(char c) {
    tag_ += c;
    if (!kFunction.starts_with(tag_)) {
      tag_.clear();
      show_raw();
      return step(c);
    }
    raw_ += c;
    if (tag_ == kFunction) begin_call(make_xml_call_reader(format_->offered));
  }

  void begin_call(std::unique_ptr<CallReader> reader) {
    reader_ = std::move(reader);
    begun_ = false;
    phase_ = Phase::kCall;
  }

  void in_call(char c) {
    CallPiece piece;
    const CallReader::Status status = reader_->push(c, piece.name, piece.arguments);
    if (!begun_ && !piece.name.empty()) {
      begun_ = true;
      ++calls_;
      raw_.clear();
      spaces_.clear();
    }
    if (!begun_ && status == CallReader::Status::kMore) raw_ += c;
    piece.index = calls_ - 1;
    if (begun_ && (calls_ == 1 || format_->offered.parallel)) out_.add_call(std::move(piece));
    if (status == CallReader::Status::kMore) return;
    if (status == CallReader::Status::kNoCall)
      show_raw();
    else
      begin_call_end();
    if (status != CallReader::Status::kDone) step(c);
  }

  void begin_call_end() {
    reader_.reset();
    raw_.clear();
    phase_ = Phase::kCallEnd;
  }

  void in_call_end(char c) {
    constexpr std::string_view kClose = "</tool_call>";
    if (is_json_space(c) && raw_.empty()) {
      spaces_ += c;
      return;
    }
    raw_ += c;
    switch (format_->tools) {
      case ToolFormat::kHermes:
      case ToolFormat::kQwen3Coder:
        if (raw_ == kClose) {
          raw_.clear();
          return begin_content();
        }
        if (kClose.starts_with(raw_)) return;
        break;
      case ToolFormat::kLlama3Json:
        if (c == '{') return begin_call(make_json_call_reader(&format_->offered));
        if (raw_ == ";" || raw_ == "," || is_json_space(c)) return;
        break;
      case ToolFormat::kMistral:
        if (in_list_ && c == ',') {
          phase_ = Phase::kCallStart;
          return;
        }
        if (in_list_ && c == ']') raw_.clear();
        break;
      case ToolFormat::kNone:
        break;
    }
    begin_content();
    replay();
  }

  static constexpr std::string_view kFunction = "<function=";

  const std::shared_ptr<const AnswerFormat> format_;
  const std::vector<std::string> markers_;
  Phase phase_ = Phase::kStart;
  AnswerPiece out_;
  std::optional<StopMatcher> search_;  // for the end of thoughts, or for the marker of a call
  std::string raw_;                    // text whose meaning is not known yet
  std::string tag_;                    // the part of a tag that has been read
  size_t new_lines_ = 0;
  bool fresh_ = false, skip_new_lines_ = false;
  std::string spaces_;
  std::unique_ptr<CallReader> reader_;
  bool begun_ = false;    // the call has been returned in part
  bool in_list_ = false;  // Mistral: calls in a JSON array
  size_t calls_ = 0;      // returned, the one being read included
};

AnswerParser::AnswerParser(std::shared_ptr<const AnswerFormat> format)
    : machine_(std::make_unique<Machine>(std::move(format))) {}
AnswerParser::~AnswerParser() = default;
AnswerParser::AnswerParser(AnswerParser&&) noexcept = default;

AnswerPiece AnswerParser::push(std::string_view text) { return machine_->push(text); }
AnswerPiece AnswerParser::finish() { return machine_->finish(); }

}  // namespace specdec::deploy
