#include "deploy/serve/answer/answer_parser.h"

#include <optional>
#include <utility>

#include "deploy/serve/answer/call_reader.h"

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

ThoughtSplitter::ThoughtSplitter(const ReasoningMarkers& markers, bool begun)
    : begin_(markers.begin),
      end_(markers.begin.empty() ? std::vector<std::string>() : std::vector<std::string>{markers.end}),
      place_(markers.begin.empty() ? Place::kAfter
             : begun               ? Place::kThoughts
                                   : Place::kStart) {}

std::string ThoughtSplitter::push(char c) {
  if (place_ == Place::kThoughts) {
    if (!end_.matched()) return end_.push({&c, 1});
    if (c != '\n') place_ = Place::kAfter;
    return {};
  }
  if (tag_.empty() && is_json_space(c)) return {};
  tag_ += c;
  if (tag_ == begin_)
    place_ = Place::kThoughts;
  else if (!begin_.starts_with(tag_))
    place_ = Place::kAfter;
  return {};
}

class AnswerParser::Machine {
 public:
  explicit Machine(std::shared_ptr<const AnswerFormat> format)
      : format_(std::move(format)),
        markers_(call_markers(format_->tools)),
        thoughts_(format_->reasoning, format_->begins_reasoning) {
    if (format_->begins_in_call)
      begin_call_start();
    else
      phase_ = thoughts_.place() == ThoughtSplitter::Place::kAfter ? Phase::kBody : Phase::kThoughts;
  }

  AnswerPiece push(std::string_view text) {
    for (const char c : text) {
      const size_t before = out_.content.size();
      ++read_;
      step(c);
      note_content(out_.content.size() - before);
    }
    return std::exchange(out_, {});
  }

  AnswerPiece finish() {
    const size_t before = out_.content.size();
    if (phase_ == Phase::kThoughts) add_reasoning(thoughts_.finish());
    if (phase_ == Phase::kContent) add_content(search_->finish());
    // After a call raw_ holds at most the beginning of what would close it.
    if (phase_ != Phase::kCallEnd) add_content(std::exchange(raw_, ""));
    if (calls_ == 0) out_.content += std::exchange(spaces_, "");
    note_content(out_.content.size() - before);
    return std::exchange(out_, {});
  }

  const std::vector<TextRange>& content() const { return content_; }

  size_t decided() const {
    const size_t searched = phase_ == Phase::kThoughts  ? thoughts_.held()
                            : phase_ == Phase::kContent ? search_->held()
                                                        : 0;
    return read_ - searched - raw_.size() - spaces_.size();
  }

 private:
  enum class Phase {
    kThoughts,   // in thoughts, or before the first byte that shows whether the answer begins with them
    kBody,       // before the first byte of the content
    kContent,    // in content, looking for the marker of a call
    kCallStart,  // after the marker of a call
    kCall,       // in a call
    kCallEnd,    // after a call, where its closing marker or another call may follow
  };

  void step(char c) {
    switch (phase_) {
      case Phase::kThoughts:
        return in_thoughts(c);
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

  // Notes that the last `bytes` of what is decided are content.
  void note_content(size_t bytes) {
    if (bytes == 0) return;
    const size_t end = decided();
    if (content_.empty() || content_.back().end != end - bytes) content_.push_back({end - bytes, end});
    content_.back().end = end;
  }

  void in_thoughts(char c) {
    add_reasoning(thoughts_.push(c));
    raw_ += c;
    if (thoughts_.place() == ThoughtSplitter::Place::kThoughts) raw_.clear();
    if (thoughts_.place() != ThoughtSplitter::Place::kAfter) return;
    phase_ = Phase::kBody;
    replay();
  }

  // Takes the text that was held back once more, in the phase in which it belongs.
  void replay() {
    for (const char held : std::exchange(raw_, "")) step(held);
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

  void in_body(char c) {
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

  // Holds white space back until other text follows, because white space before a call is not content. After a call it
  // is content only if it divides content from content.
  void add_content(const std::string& text) {
    for (const char c : text) {
      spaces_ += c;
      if (!markers_.empty() && is_json_space(c)) continue;
      if (calls_ > 0 && content_.empty() && out_.content.empty()) spaces_ = c;
      out_.content += std::exchange(spaces_, "");
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
          spaces_.clear();
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
        if (in_list_ && c == ']') {
          raw_.clear();
          spaces_.clear();
        }
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
  ThoughtSplitter thoughts_;
  Phase phase_ = Phase::kThoughts;
  AnswerPiece out_;
  size_t read_ = 0;                    // bytes of the text
  std::vector<TextRange> content_;     // where the content comes from
  std::optional<StopMatcher> search_;  // for the marker of a call
  std::string raw_;                    // text whose meaning is not known yet
  std::string tag_;                    // the part of a tag that has been read
  size_t new_lines_ = 0;
  bool fresh_ = true;  // the thoughts have no text yet
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
const std::vector<TextRange>& AnswerParser::content() const { return machine_->content(); }
size_t AnswerParser::decided() const { return machine_->decided(); }

}  // namespace specdec::deploy
