-- Written by rnic wireshark --install; rnic wireshark --uninstall removes it.
--
-- Puts what rnic check finds into the tree of the packet that it concerns, as fields and as expert information.
-- Findings are comments on packets: rnic's capture interfaces write them, and so does rnic check --comments.

local findings = Proto("rnic", "rnic check")
local severity = ProtoField.string("rnic.severity", "Severity")
local rule = ProtoField.string("rnic.rule", "Rule")
local text = ProtoField.string("rnic.text", "What the rule says")
local clause = ProtoField.string("rnic.clause", "Clause")
local detail = ProtoField.string("rnic.finding", "Finding")
findings.fields = { severity, rule, text, clause, detail }

local protocol = expert.group.PROTOCOL
local experts = {
    error = ProtoExpert.new("rnic.error", "A rule is broken", protocol, expert.severity.ERROR),
    warning = ProtoExpert.new("rnic.warning", "A rule is most likely broken", protocol, expert.severity.WARN),
    note = ProtoExpert.new("rnic.note", "A habit of the maker", protocol, expert.severity.NOTE),
}
findings.experts = { experts.error, experts.warning, experts.note }

local comments = Field.new("frame.comment")

function findings.dissector(buffer, pinfo, tree)
    for _, comment in ipairs({ comments() }) do
        local how, what, name, says, where = comment.value:match("^rnic (%a+): (.*) %[([%w-]+): (.*); (.-)%]$")
        if experts[how] then
            local item = tree:add(findings, buffer(0, 0), "rnic check: " .. how .. ": " .. what)
            item:add(severity, buffer(0, 0), how):set_generated()
            item:add(detail, buffer(0, 0), what):set_generated()
            item:add(rule, buffer(0, 0), name):set_generated()
            item:add(text, buffer(0, 0), says):set_generated()
            item:add(clause, buffer(0, 0), where):set_generated()
            item:set_generated()
            item:add_proto_expert_info(experts[how], what)
        end
    end
end

register_postdissector(findings)
