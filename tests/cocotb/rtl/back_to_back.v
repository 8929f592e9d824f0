// Two network ports with a FIFO in each direction: what peer A sends arrives at peer B, and the other way round.
module back_to_back #(
    parameter BYTES = 8
) (
    input wire clk,
    input wire rst,
    input wire [BYTES*8-1:0] a_rx_tdata, b_rx_tdata,
    input wire [BYTES-1:0] a_rx_tkeep, b_rx_tkeep,
    input wire a_rx_tlast, b_rx_tlast,
    input wire a_rx_tvalid, b_rx_tvalid,
    output wire a_rx_tready, b_rx_tready,
    output wire [BYTES*8-1:0] a_tx_tdata, b_tx_tdata,
    output wire [BYTES-1:0] a_tx_tkeep, b_tx_tkeep,
    output wire a_tx_tlast, b_tx_tlast,
    output wire a_tx_tvalid, b_tx_tvalid,
    input wire a_tx_tready, b_tx_tready
);
    axis_fifo #(.BYTES(BYTES)) there (
        .clk(clk), .rst(rst),
        .s_tdata(a_rx_tdata), .s_tkeep(a_rx_tkeep), .s_tlast(a_rx_tlast),
        .s_tvalid(a_rx_tvalid), .s_tready(a_rx_tready),
        .m_tdata(b_tx_tdata), .m_tkeep(b_tx_tkeep), .m_tlast(b_tx_tlast),
        .m_tvalid(b_tx_tvalid), .m_tready(b_tx_tready)
    );
    axis_fifo #(.BYTES(BYTES)) back (
        .clk(clk), .rst(rst),
        .s_tdata(b_rx_tdata), .s_tkeep(b_rx_tkeep), .s_tlast(b_rx_tlast),
        .s_tvalid(b_rx_tvalid), .s_tready(b_rx_tready),
        .m_tdata(a_tx_tdata), .m_tkeep(a_tx_tkeep), .m_tlast(a_tx_tlast),
        .m_tvalid(a_tx_tvalid), .m_tready(a_tx_tready)
    );
endmodule
