// An AXI4-Stream FIFO: DEPTH transfers, a power of two.
module axis_fifo #(
    parameter BYTES = 8,
    parameter LOG_DEPTH = 3
) (
    input wire clk,
    input wire rst,
    input wire [BYTES*8-1:0] s_tdata,
    input wire [BYTES-1:0] s_tkeep,
    input wire s_tlast,
    input wire s_tvalid,
    output wire s_tready,
    output wire [BYTES*8-1:0] m_tdata,
    output wire [BYTES-1:0] m_tkeep,
    output wire m_tlast,
    output wire m_tvalid,
    input wire m_tready
);
    localparam WIDTH = BYTES * 9 + 1;
    reg [WIDTH-1:0] store [0:(1 << LOG_DEPTH)-1];
    reg [LOG_DEPTH:0] head;
    reg [LOG_DEPTH:0] tail;

    wire [LOG_DEPTH:0] used = tail - head;
    assign s_tready = !rst && !used[LOG_DEPTH];
    assign m_tvalid = head != tail;
    assign {m_tlast, m_tkeep, m_tdata} = store[head[LOG_DEPTH-1:0]];

    always @(posedge clk) begin
        if (rst) begin
            head <= 0;
            tail <= 0;
        end else begin
            if (s_tvalid && s_tready) begin
                store[tail[LOG_DEPTH-1:0]] <= {s_tlast, s_tkeep, s_tdata};
                tail <= tail + 1'b1;
            end
            if (m_tvalid && m_tready)
                head <= head + 1'b1;
        end
    end
endmodule
